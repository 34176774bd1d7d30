"""A profile as plain data: every figure of the table, ready for strict JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mpcore.backend.profiler import CAST, LOSS, summed
from mpcore.numerics.dtypes import is_low
from mpcore.tools.profiling.rules import kernel_saving, reason
from mpcore.tools.profiling.values import pattern_by_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpcore.backend.profiler import KernelTime, OpTime, Recording, Spread
    from mpcore.policy.plan import Plan
    from mpcore.tools.profiling.values import Versus

__all__ = ["BETWEEN", "Measured", "result_of"]

BETWEEN = "(between ops)"
"""What the rest of a step is called: Python, the framework's own work, the profiler's."""


@dataclass(frozen=True)
class Measured:
    """All that was measured for one policy in one backend.

    Attributes:
        plan: what the policy means for the model.
        plain: seconds a step without the profiler.
        recording: what the profiler saw.
        kernels: timed alone.
        versus: other policies, on whole steps.
        untried: policies worth trying that the backend refused, with the reason.
        skipped: steps of the recording that the loss scale skipped.
        simulated: whether the 16-bit dtype is float32 that is rounded.
    """

    plan: Plan
    plain: Spread
    recording: Recording
    kernels: Sequence[KernelTime] = ()
    versus: Sequence[Versus] = ()
    untried: Sequence[str] = ()
    skipped: int = 0
    simulated: bool = False


def result_of(measured: Measured) -> dict[str, Any]:
    """Return every figure as plain data; shares of ``rows`` sum to 1."""
    recording, plain = measured.recording, measured.plain
    wall = sum(recording.seconds)
    shown = _Shown(measured, wall)
    profiled = wall / recording.steps
    casts = [op for op in recording.ops if op.op == CAST]
    return {
        "policy": str(measured.plan.policy),
        "simulated": measured.simulated,
        "steps": recording.steps,
        "skipped_steps": measured.skipped,
        "source": recording.source,
        "notes": list(recording.notes),
        "step_ms": _ms(plain),
        "profiled_step_ms": profiled * 1e3,
        "profiler_overhead": profiled / plain.median - 1,
        "rows": shown.rows(),
        "casts": {
            "ms": sum(op.seconds for op in casts) / recording.steps * 1e3,
            "share": sum(op.seconds for op in casts) / wall,
            "rows": shown.casts(casts),
        },
        "not_lowered": shown.not_lowered(),
        "kernels": [_kernel(kernel, recording) for kernel in measured.kernels],
        "versus": [_versus(one) for one in measured.versus],
        "untried": list(measured.untried),
        "ops": [_plain(op, recording.steps) for op in recording.ops],
    }


class _Shown:
    """Rows of the table."""

    def __init__(self, measured: Measured, wall: float) -> None:
        self._measured, self._wall = measured, wall
        self._steps = measured.recording.steps
        self._ops = measured.recording.ops

    def rows(self) -> list[dict[str, Any]]:
        """Return time by op, phase and dtype, heaviest first; the rest of the step is last."""
        found = []
        for op in summed(self._ops, "op", "phase", "dtype"):
            alike = [
                o for o in self._ops if (o.op, o.phase, o.dtype) == (op.op, op.phase, op.dtype)
            ]
            found.append(self._figures(op) | {"layers": _layers(alike)})
        rest = self._wall - sum(op.seconds for op in self._ops)
        between = {"op": BETWEEN, "phase": "", "dtype": "", "calls": 0.0}
        return [*found, {**between, **self._time(rest), "layers": []}]

    def casts(self, casts: Sequence[OpTime]) -> list[dict[str, Any]]:
        """Return casts by direction and what caused them: a kind of layer, or an op in it."""
        found: dict[tuple[str, str, str], list[OpTime]] = {}
        pattern = pattern_by_path(_place(cast.layer) for cast in casts)
        for cast in casts:
            key = pattern[_place(cast.layer)], cast.cause, cast.dtype
            found.setdefault(key, []).append(cast)
        rows = [
            {"layer": place, "cause": cause, "dtype": dtype}
            | self._time(sum(op.seconds for op in own))
            | {"calls": sum(op.calls for op in own) / self._steps}
            for (place, cause, dtype), own in found.items()
        ]
        return sorted(rows, key=lambda row: -row["ms"])

    def not_lowered(self) -> list[dict[str, Any]]:
        """Return what ran in float32 under a policy that lowers, and why; heaviest first."""
        plan = self._measured.plan
        if not is_low(plan.policy.compute):
            return []
        wide = [
            op
            for op in self._ops
            if op.dtype == "float32" and op.op != CAST and op.phase in ("forward", "backward")
        ]
        why: dict[tuple[str, str], list[OpTime]] = {}
        for op in wide:
            why.setdefault((op.op, reason(op, plan)), []).append(op)
        timed = {kernel.name: kernel for kernel in self._measured.kernels}
        rows: list[dict[str, Any]] = [
            {"op": op, "why": text, "layers": _layers(own)}
            | self._time(sum(o.seconds for o in own))
            | {"saves_ms": _saving(own, timed, self._steps)}
            for (op, text), own in why.items()
        ]
        return sorted(rows, key=lambda row: -row["ms"])

    def _figures(self, op: OpTime) -> dict[str, Any]:
        calls = op.calls / self._steps
        names = {"op": op.op, "phase": op.phase, "dtype": op.dtype, "calls": calls}
        return names | self._time(op.seconds)

    def _time(self, seconds: float) -> dict[str, float]:
        return {"ms": seconds / self._steps * 1e3, "share": seconds / self._wall}


def _saving(ops: Sequence[OpTime], timed: Any, steps: int) -> float | None:
    """Return the ms a step that the 16-bit dtype would save; None where no kernel was timed."""
    known = any(name in timed and timed[name].saves for op in ops for name in op.kernels)
    return sum(kernel_saving(op, timed) for op in ops) / steps * 1e3 if known else None


def _place(layer: str | None) -> str:
    return "" if layer is None else layer or "(model)"


def _layers(ops: Iterable[OpTime]) -> list[str]:
    """Return where ops ran, numbers as ``*``, heaviest first."""
    heaviest = sorted(ops, key=lambda op: -op.seconds)
    found = pattern_by_path(_place(op.layer) for op in heaviest).values()
    return [pattern for pattern in dict.fromkeys(found) if pattern]


def _kernel(kernel: KernelTime, recording: Recording) -> dict[str, Any]:
    own = [op for op in recording.ops if kernel.name in op.kernels]
    own.sort(key=lambda op: -op.kernels[kernel.name][1])  # one kernel may serve several ops
    calls = sum(op.kernels[kernel.name][0] for op in own) / recording.steps
    found: dict[str, Any] = {
        "kernel": kernel.name,
        "op": own[0].op if own else "",
        "phase": own[0].phase if own else "",
        "layers": _layers(own),
        "calls": calls,
        "dtype": kernel.dtype,
        "us": _us(kernel.now),
        "other": kernel.other,
        "other_us": _us(kernel.then),
        "saves_us": _us(kernel.saves),
        "saves_ms_a_step": None if kernel.saves is None else kernel.saves.median * calls * 1e3,
        "refused": kernel.refused,
    }
    return found


def _versus(one: Versus) -> dict[str, Any]:
    return {
        "policy": one.policy,
        "rule": one.rule,
        "why": one.why,
        "step_ms": _ms(one.now),
        "other_step_ms": _ms(one.then),
        "saves_ms": _ms(one.saves),
        "saves_share": one.saves.median / one.now.median,
        "sure": one.sure,
        "decision": one.decision,
        "rounds": one.rounds,
    }


def _plain(op: OpTime, steps: int) -> dict[str, Any]:
    found = {key: value for key, value in asdict(op).items() if key not in ("kernels", "seconds")}
    found["calls"] = op.calls / steps
    return found | {"ms": op.seconds / steps * 1e3, "outside_model": op.layer == LOSS}


def _ms(spread: Spread) -> dict[str, float]:
    return {key: value * 1e3 for key, value in asdict(spread).items()}


def _us(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else {key: v * 1e6 for key, v in asdict(spread).items()}
