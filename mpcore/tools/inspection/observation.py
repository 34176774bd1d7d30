"""What ran beside what was planned: rows, differences, notes; as text and as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore._lib.columns import in_columns
from mpcore.numerics.dtypes import FORMATS
from mpcore.tools.inspection.trace import (
    LayerTrace,
    OpCall,
    as_dict,
    expected,
    expected_op,
    widest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mpcore.policy.coverage import Products
    from mpcore.policy.plan import LayerPlan, Plan
    from mpcore.policy.policy import Policy
    from mpcore.tools.inspection.trace import Call, Trace

__all__ = ["LayerRow", "Observation", "OpRow", "judge"]

_LOW = ("float16", "bfloat16")


@dataclass(frozen=True)
class LayerRow:
    """One layer: what was planned, what was seen.

    Attributes:
        path: dotted path of the layer.
        type: the framework's class name.
        rule: what decided in the plan.
        compute: planned dtype of compute; ``""`` where the plan does not say.
        output: planned dtype of what is handed on; ``""`` likewise.
        seen: what the layer did; None if it was not called.
        faults: where the two part, in words; empty if they agree.
    """

    path: str
    type: str
    rule: str
    compute: str
    output: str
    seen: LayerTrace | None
    faults: tuple[str, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether there was something to compare: it was called, and the plan says something."""
        return bool(self.faults) or (self.seen is not None and bool(self.compute or self.output))


@dataclass(frozen=True)
class OpRow:
    """One op outside of layers: what was seen, what the op list says.

    Attributes:
        seen: what it did.
        compute: predicted dtype of compute; ``""`` for no prediction.
        output: predicted dtype of its result; ``""`` likewise.
        why: what decides.
        faults: where the two part, in words.
    """

    seen: OpCall
    compute: str
    output: str
    why: str
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observation:
    """One batch, as it ran, beside the plan.

    Attributes:
        plan: what was planned.
        layers: one row a layer of the plan, in its order.
        ops: one row for each function or operator outside of layers.
        notes: what else was noticed: repeated calls in another dtype, rounded whole numbers.
        how: in one sentence how it was seen.
        work: multiply-adds of the forward pass by place and dtype; empty where the framework does
            not tell them.
        raises: where the step would raise for its dtypes, and what runs instead; in words. What
            is told of ops behind such a place is as if it ran.
    """

    plan: Plan
    layers: tuple[LayerRow, ...]
    ops: tuple[OpRow, ...] = ()
    notes: tuple[str, ...] = ()
    how: str = ""
    work: tuple[Products, ...] = ()
    raises: tuple[str, ...] = ()

    @property
    def multiply_adds(self) -> dict[str, int]:
        """Number of multiply-adds of the forward pass by dtype; empty where it is not known."""
        found: dict[str, int] = {}
        for each in self.work:
            found[each.dtype] = found.get(each.dtype, 0) + each.count
        return found

    @property
    def agreement(self) -> float:
        """Share of layers, and calls of a graph, that did what the plan says, in [0, 1]."""
        judged = self._judged
        return sum(not row.faults for row in judged) / len(judged) if judged else 1.0

    @property
    def _judged(self) -> list[LayerRow | OpRow]:
        calls = [row for row in self.ops if row.seen.planned]
        return [*(row for row in self.layers if row.judged), *calls]

    @property
    def differing(self) -> tuple[LayerRow, ...]:
        """Return the layers that did something else."""
        return tuple(row for row in self.layers if row.faults)

    def __getitem__(self, path: str) -> LayerRow:
        """Return the row of one layer path."""
        for row in self.layers:
            if row.path == path:
                return row
        msg = f"no layer {path!r} in this observation"
        raise KeyError(msg)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "format": "mpcore-observation",
            "version": 1,
            "policy": str(self.plan.policy),
            "agreement": self.agreement,
            "how": self.how,
            "layers": [_layer_dict(row) for row in self.layers],
            "ops": [
                {**as_dict(row), "seen": as_dict(row.seen), "agree": not row.faults}
                for row in self.ops
            ],
            "notes": list(self.notes),
            "multiply_adds": self.multiply_adds,
            "raises": list(self.raises),
        }

    def __str__(self) -> str:
        """Return a table of layers, one of ops, then every difference."""
        judged, agreed = self._judged, sum(not row.faults for row in self._judged)
        calls = any(isinstance(row, OpRow) for row in judged)
        what = "layers and calls" if calls else "layers"
        lines = [f"policy {self.plan.policy}", self.how, ""]
        head = ("", "layer", "type", "planned", "forward", "backward")
        lines += in_columns(head, [_shown(row) for row in self.layers])
        if self.ops:
            names = ("", "in", "op", "came", "compute", "went", "because")
            lines += ["", *in_columns(names, [_shown_op(row) for row in self.ops])]
        lines += [
            "",
            f"{agreed} of {len(judged)} {what} did what the plan says "
            f"({self.agreement:.1%})" + ("; others (*):" if self.differing else ""),
        ]
        for layer in self.differing:
            lines += [f"  {layer.path or '(model)'}: {fault}" for fault in layer.faults]
        for op in (row for row in self.ops if row.faults):
            lines += [f"  {op.seen.path or '(model)'} {op.seen.name}: {f}" for f in op.faults]
        lines += _shares(self.work)
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"raises: {text}" for text in self.raises]
        return "\n".join(lines)


def _shares(work: Sequence[Products]) -> Iterator[str]:
    """Yield a line: the share of each dtype, and where most of what is not in 16 bits is done."""
    total = sum(each.count for each in work)
    if not total:
        return
    dtypes = dict.fromkeys(each.dtype for each in work)
    counts = {dtype: sum(each.count for each in work if each.dtype == dtype) for dtype in dtypes}
    shares = ", ".join(
        f"{counts[d] / total:.1%} {d}" for d in sorted(counts, key=counts.__getitem__)
    )
    wide = sorted((e for e in work if e.dtype not in _LOW), key=lambda e: -e.count)
    where = [f"{e.path or '(model)'}{f' {e.name}' if e.name else ''}" for e in wide]
    more = f" and {len(where) - 3} more places" if len(where) > 3 else ""
    told = f"; not in 16 bits: {', '.join(where[:3])}{more}" if len(counts) > 1 else ""
    yield f"multiply-adds forward: {shares}{told}"


def _layer_dict(row: LayerRow) -> dict[str, Any]:
    seen: dict[str, Any] | None = None
    if row.seen is not None:
        seen = {"calls": [as_dict(call) for call in row.seen.calls]}
        if row.seen.again:
            seen["again"] = [as_dict(call) for call in row.seen.again]
    return {
        "path": row.path,
        **as_dict(row),
        "seen": seen,
        "judged": row.judged,
        "agree": not row.faults,
    }


def _shown(row: LayerRow) -> tuple[str, ...]:
    name, mark = row.path or "(model)", "*" if row.faults else ""
    planned = " > ".join(filter(None, (row.compute, row.output))) or "-"
    if row.compute == row.output:
        planned = row.compute or "-"
    if row.seen is None:
        return (mark, name, row.type, planned, "not called", "")
    calls = row.seen.calls
    forward = "; ".join(_unique(_flow(c.came, c.kernels, c.went) for c in calls))
    backward = "; ".join(_unique(_flow(c.grad_came, c.grad_kernels, c.grad_went) for c in calls))
    return (mark, name, row.type, planned, forward, backward)


def _flow(*parts: tuple[str, ...]) -> str:
    """Return what came, what it was computed in, and what went; once where all are the same."""
    found = ["+".join(part) for part in parts if part]
    return found[0] if len(set(found)) == 1 else " > ".join(found)


def _unique(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def _shown_op(row: OpRow) -> tuple[str, ...]:
    seen, times = row.seen, f" x{row.seen.count}" if row.seen.count > 1 else ""
    parts = ["+".join(part) or "-" for part in (seen.came, seen.kernels, seen.went)]
    mark = "*" if row.faults else ""
    return (mark, seen.path or "(model)", f"{seen.name}{times}", *parts, row.why)


# --- what a trace says to a plan --------------------------------------------------------------


def judge(plan: Plan, trace: Trace, system: str = "") -> Observation:
    """Return a trace beside its plan, with every difference named.

    Args:
        plan: what was planned.
        trace: what was seen.
        system: op list that by="op" follows there, of ``mpcore.numerics.ops``; ``""`` for none.
    """
    rows = tuple(_row(entry, trace, plan.policy, system) for entry in plan.layers)
    ops = tuple(_op_row(seen, plan, system) for seen in trace.ops)
    notes = [*_again(rows), *_rounded(rows, trace, plan.policy), *_silent(plan, trace)]
    return Observation(plan, rows, ops, tuple(notes), trace.how, trace.work)


def _row(entry: LayerPlan, trace: Trace, policy: Policy, system: str) -> LayerRow:
    seen = trace.layers.get(entry.path)
    calls = seen.calls if seen else ()
    promised = [expected(entry, call, policy, system, trace.simulated) for call in calls]
    faults = dict.fromkeys(
        fault
        for call, (compute, output) in zip(calls, promised, strict=True)
        for fault in _faults(
            call, compute, output, wider=entry.compute == "follow", backward=trace.backward
        )
    )
    faults |= dict.fromkeys(_elsewhere(entry, trace))
    compute, output = ("/".join(_unique(pair[i] for pair in promised)) for i in (0, 1))
    return LayerRow(entry.path, entry.type, entry.rule, compute, output, seen, tuple(faults))


def _faults(call: Call, compute: str, output: str, *, wider: bool, backward: bool) -> Iterator[str]:
    """Yield where a call parts from its plan.

    Args:
        call: what was seen.
        compute: planned dtype; ``""`` for none.
        output: likewise.
        wider: whether the layer may compute in more than that: one that follows casts nothing
            on our side, but Keras' means and sums use float32 inside.
        backward: whether gradients were seen.
    """

    def parts(dtypes: tuple[str, ...]) -> bool:
        own = ((widest((d, compute)) if wider else compute) for d in dtypes)
        return bool(compute) and tuple(own) != dtypes

    if parts(call.kernels):
        yield f"planned to compute in {compute}, computed in {'+'.join(call.kernels)}"
    if output and call.went and call.went[0] != output:
        yield f"planned to hand on {output}, handed on {'+'.join(call.went)}"
    if not backward:
        return
    if parts(call.grad_kernels):
        yield f"planned to compute in {compute}, its gradients were computed in " + "+".join(
            call.grad_kernels
        )
    for name, grad, tensor in (
        ("gradient of its output", call.grad_came, call.went),
        ("gradient of its input", call.grad_went, call.came),
    ):
        if grad and tensor and not set(grad) <= set(tensor):
            yield f"the {name} is {'+'.join(grad)}, the tensor {'+'.join(tensor)}"


def _elsewhere(entry: LayerPlan, trace: Trace) -> Iterator[str]:
    """Yield where parameters of a layer were multiplied outside of it, past its plan."""
    if entry.category == "container" or entry.compute not in (*_LOW, "float32"):
        return
    for op in trace.ops:
        own = [name for name in op.params if _belongs(name, entry.path)]
        if op.product and own and op.path != entry.path and set(op.kernels) != {entry.compute}:
            yield (
                f"planned to compute in {entry.compute}; its {own[0].rpartition('.')[2]} is "
                f"multiplied outside of it, by {op.name} in {op.path or '(model)'}, in "
                f"{'+'.join(op.kernels)}"
            )


def _belongs(name: str, path: str) -> bool:
    return name.startswith(f"{path}.") if path else "." not in name


def _silent(plan: Plan, trace: Trace) -> Iterator[str]:
    """Tell layers with products that were never called: what they would do is not known."""
    used = {name for op in trace.ops for name in op.params}
    silent = [
        entry.path
        for entry in plan.layers
        if entry.param and entry.compute in _LOW and entry.path not in trace.layers
        if not any(_belongs(name, entry.path) for name in used)
    ]
    if silent and trace.layers and not trace.clashes:
        more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
        yield f"not called, so not known: {', '.join(silent[:3])}{more}"


def _op_row(seen: OpCall, plan: Plan, system: str) -> OpRow:
    compute, output, why = expected_op(seen, plan, system)
    faults = []
    if compute and seen.kernels and set(seen.kernels) != {compute}:
        faults.append(f"predicted to compute in {compute}, computed in {'+'.join(seen.kernels)}")
    if output and seen.went and seen.went[0] != output:
        faults.append(f"predicted to return {output}, returned {'+'.join(seen.went)}")
    return OpRow(seen, compute, output, why, tuple(faults))


def _again(rows: Sequence[LayerRow]) -> Iterator[str]:
    """Tell layers that activation checkpointing ran in another dtype than at first."""
    for row in rows:
        seen = row.seen
        if seen is None or not seen.again:
            continue
        first, second = (
            {(c.came, c.kernels, c.went) for c in calls} for calls in (seen.calls, seen.again)
        )
        if not all(any(_repeats(call, other) for other in first) for call in second):
            texts = [
                " / ".join(sorted(_flow(*parts) for parts in found)) for found in (first, second)
            ]
            yield (
                f"{row.path or '(model)'} ran {texts[0]} in the forward pass and {texts[1]} when "
                "it was recomputed for the backward pass: its gradients are those of another "
                "function; run both under the same autocast region"
            )


def _repeats(again: Sequence[tuple[str, ...]], call: Sequence[tuple[str, ...]]) -> bool:
    """Return whether a repeated call is the first one; it may end when nothing more is needed."""
    return all(not own or own == other for own, other in zip(again, call, strict=True))


def _rounded(rows: Sequence[LayerRow], trace: Trace, policy: Policy) -> Iterator[str]:
    """Tell whole numbers that a 16-bit format cannot hold and that are cast to one."""
    lowered = [(row, row.seen) for row in rows if row.seen and row.compute in _LOW]
    for row, seen in lowered:
        yield from _too_large(row.path or "(model)", seen.peak, row.compute)
    told = [seen.peak for _, seen in lowered]
    low = {row.compute for row, _ in lowered} | (
        {policy.compute} if policy.inputs == "cast" else set()
    )
    for where, peak in trace.inputs.items():
        for dtype in sorted(low) if peak not in told else ():
            yield from _too_large(where, peak, dtype)


def _too_large(where: str, peak: float, dtype: str) -> Iterator[str]:
    most = 2 / FORMATS[dtype].spacing
    if peak > most:
        yield (
            f"{where}: whole numbers up to {peak:.0f} come in as floats and may be rounded: "
            f"{dtype} holds them exactly up to {most:.0f}; pass them as integers, or keep the "
            "layer in float32"
        )
