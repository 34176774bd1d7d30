"""How two runs compare: losses, loss scales, counts of steps; and when a difference is none."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CLOSE",
    "LEAST",
    "MODES",
    "NOT_RUN",
    "NUDGES",
    "PATIENCE",
    "ROUNDING",
    "SENSITIVE",
    "Comparison",
    "Run",
    "Verification",
    "VerifyOptions",
    "against_own",
    "alike_not_run",
    "allow_rounding",
    "by_own_drift",
    "compare",
    "drift",
    "stopped_alone",
]

MODES = ("float32", "mixed", "overflow")
"""What is compared: float32 training, the script's own precision, and a planted overflow."""

CLOSE = {"float32": 1e-5, "mixed": 1e-3, "overflow": 1e-3}
"""Largest relative difference of a loss that is called close: another kernel, the same sums."""

ROUNDING = 1e-4
"""The same for float32 losses of a port whose report names another rounding: 20 steps of AdamW
make 1.5e-5 of a channels_last model with a fused optimizer."""

SENSITIVE = 4.0
"""Times the drift of the original itself, with weights moved by one unit in the last place, that a
port may drift whose report names another rounding: its kernels round anew in each layer."""

NUDGES = (1, 2)
"""Seeds by which weights are moved so: the larger drift of the two is taken."""

NOT_RUN = "not run"
"""The verdict on a mode that MindSpore's CPU build cannot run: nothing is known of it."""

_ASCEND = "bfloat16 must run on Ascend"  # as port.autocast raises
_NEEDS_ASCEND = "bfloat16 needs Ascend: MindSpore's CPU build has no kernels for it"
_LOST = 0.05  # the original's own drift: nothing is told of a port after more

LEAST = 3
"""Losses that a slow run records at least: one before the planted overflow, it, and one after."""

PATIENCE = 4
"""Seconds by the clock for each processor second of a time limit: the machine may be busy."""

_ENOUGH = 20.0  # processor seconds


@dataclass(frozen=True)
class VerifyOptions:
    """How verification runs.

    Attributes:
        args: command line of the script.
        losses: losses that are recorded, >= 1.
        at: index of the loss whose gradients are made infinite in mode ``"overflow"``.
        time_limit: processor seconds for each run; by the clock ``PATIENCE`` times as many.
        threads: threads of each run; 1 makes runs comparable bit for bit.
        modes: which of ``MODES`` are run.
        rounds: whether the report of the port names another rounding: where losses differ the
            original runs again, its weights moved by one unit in the last place.
        compiled: MindSpore: what ``ms.jit`` decorates runs as graphs, and neither side masks.
    """

    args: tuple[str, ...] = ()
    losses: int = 20
    at: int = 3
    time_limit: float = 300.0
    threads: int = 1
    modes: tuple[str, ...] = MODES
    rounds: bool = False
    compiled: bool = False

    @property
    def enough(self) -> float:
        """Processor seconds after which ``LEAST`` losses are enough."""
        return min(_ENOUGH, self.time_limit * 0.1)


@dataclass(frozen=True)
class Run:
    """What one run recorded, and how it ended.

    Attributes:
        losses, scales: as recorded.
        steps: how often an optimizer moved something.
        end: ``"ok"``, ``"failed"``, ``"late"`` (the time limit ended it), or ``"short"`` (it had
            enough losses, and used much time).
        words: the last of its output.
        before: steps and scales that were there when each loss was recorded; () if not known.
        stopped: the line of the script at which it failed; "" if that is not known.
    """

    losses: tuple[float, ...]
    scales: tuple[float, ...]
    steps: int
    end: str
    words: str = ""
    before: tuple[tuple[int, int], ...] = ()
    stopped: str = ""


@dataclass(frozen=True)
class Comparison:
    """One mode, original against port.

    Attributes:
        mode: one of ``MODES``.
        verdict: ``"same"`` (losses, scales and counts of steps equal), ``"close"`` (losses
            within ``CLOSE``, scales and steps equal), ``"different"``, ``"not compared"``, or
            ``"not run"``: only Ascend can.
        losses: how many losses each recorded.
        largest: largest relative difference of a loss; None where none was compared.
        scales: whether the trajectories of the scale are equal.
        first: index of the first loss or scale that differs; None if none does.
        words: what a reader should know.
        alike: whether both ran to the same end, with as many losses and steps.
        steps: how often an optimizer of the original moved something.
        planted: whether both came to the loss that this mode plants an overflow into.
        stopped: the line of the port at which it failed; "" if that is not known.
        own: how far the original, its weights moved by one unit in the last place, was from itself
            up to each loss; () where that was not run.
    """

    mode: str
    verdict: str
    losses: tuple[int, int]
    largest: float | None
    scales: bool
    first: int | None
    words: str = ""
    alike: bool = False
    steps: int = 0
    planted: bool = True
    stopped: str = ""
    original: tuple[float, ...] = field(default=(), repr=False)
    port: tuple[float, ...] = field(default=(), repr=False)
    original_scales: tuple[float, ...] = field(default=(), repr=False)
    port_scales: tuple[float, ...] = field(default=(), repr=False)
    own: tuple[float, ...] = field(default=(), repr=False)

    @property
    def by_sensitivity(self) -> bool:
        """Whether losses are apart, and by no more than rounding moves the original itself."""
        return self.verdict == "close" and bool(self.own)


@dataclass(frozen=True)
class Verification:
    """What was verified, and how close it is.

    Attributes:
        script: the script, relative to what was ported.
        target: what it was ported to.
        comparisons: one a mode.
        whole: why the script was not compared whole; "" if it was.
        step: what is known of the step that was compared in its place; see ``verify.step``.
        amp_off: whether it has mixed precision, and all of its runs had it switched off.
        unmoved: whether it has an optimizer, and none stepped in float32.
        compiled: the same, of the port whose steps ``ms.jit`` compiles; () if that was not run.
        not_compiled: why the port is not that one; "" if it is, or nothing there could be compiled.
    """

    script: str
    target: str
    comparisons: tuple[Comparison, ...]
    whole: str = ""
    step: dict[str, Any] | None = None
    amp_off: bool = False
    unmoved: bool = False
    compiled: tuple[Comparison, ...] = ()
    not_compiled: str = ""

    @property
    def is_idle(self) -> bool:
        """Whether its own precision gave the original the bits of float32, and no scale moved."""
        runs = {one.mode: one for one in self.comparisons}
        if not {"float32", "mixed"} <= set(runs):
            return False
        mixed = runs["mixed"]
        return mixed.original == runs["float32"].original and not mixed.original_scales

    @property
    def passed(self) -> bool:
        """Whether every mode was compared, and none is different."""
        if self.step is not None and (self.step.get("refused") or self.step.get("elsewhere")):
            return False
        if self.amp_off or self.unmoved:
            return False
        return bool(self.comparisons) and not _first_bad(self.comparisons)

    @property
    def why_not(self) -> str:
        """Why it cannot be called verified; "" if it can."""
        if self.passed:
            return ""
        step = self.step or {}
        if step.get("refused"):
            return f"its step was not taken out: {step['refused']}"
        if step.get("elsewhere"):
            lines = len(step["elsewhere"])
            said = f"{lines} lines of the step's port do not stand in the port"
            bad = _first_bad(self.comparisons)
            return f"{said}; {bad}" if bad else said
        if bad := _first_bad(self.comparisons):
            return bad
        if self.unmoved:
            losses = self.comparisons[0].losses[0]
            return (
                f"no optimizer stepped within {losses} losses: accumulate fewer, by --verify-args, "
                "or another file steps"
            )
        if self.amp_off and self.comparisons:
            return "mixed precision was off in it: switch it on by --verify-args"
        return "nothing was run"

    @property
    def ran(self) -> bool:
        """Whether the original recorded a loss in any mode."""
        return any(one.losses[0] for one in self.comparisons)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {**asdict(self), "why_not": self.why_not}

    def lines(self) -> list[str]:
        """Return the comparisons as text, a line each."""
        whole = [f"not run whole: {self.whole}"] if self.whole else []
        step = self.step["lines"] if self.step is not None else []
        found = [f"{one.mode:<9} {one.verdict:<13} {one.words}" for one in self.comparisons]
        graphs = [f"compiled, {one.mode:<9} {one.verdict:<13} {one.words}" for one in self.compiled]
        graphs += ["compiled: with dropout and Bernoulli draws off on both sides"] if graphs else []
        left = [f"not compiled: {self.not_compiled}"] if self.not_compiled else []
        return [*whole, *step, *found, *graphs, *left]

    def with_compiled(self, found: tuple[Comparison, ...]) -> Verification:
        """Return this with what the compiled port gave, and why that one is not taken."""
        return replace(self, compiled=found, not_compiled=_first_bad(found))


def _first_bad(found: Sequence[Comparison]) -> str:
    """Return the first mode that is neither same nor close, and why; "" if all are.

    Of one that only Ascend runs nothing is known.
    """
    bad = next((one for one in found if one.verdict not in ("same", "close", NOT_RUN)), None)
    return f"{bad.mode}: {bad.words}" if bad is not None else ""


def against_own(one: Comparison, exact: tuple[float, ...]) -> Comparison:
    """Judge lower precision by the original's own distance from its float32 losses.

    Two frameworks round 16-bit products in another order; twice that distance is close.
    """
    if one.mode == "float32" or one.verdict != "different" or not one.scales:
        return one
    count = one.losses[0]
    if not (0 < count == one.losses[1] <= len(exact)):  # what is slow has fewer losses
        return one
    theirs, ours = (
        max(_relative(a, b) for a, b in zip(losses, exact[:count], strict=True))
        for losses in (one.original, one.port)
    )
    if not ours <= 2 * theirs + CLOSE["float32"]:
        return one
    words = f"losses {ours:.1e} from the original's float32, its own {theirs:.1e}, scales equal"
    return replace(one, verdict="close", words=words)


def allow_rounding(done: Verification, where: str) -> Verification:
    """Judge a port whose report names another rounding in lines ``where``.

    Losses differ then, a little in float32, and in lower precision as far as that itself is from
    float32. Scales and counts of steps must still be equal.
    """
    exact = next((one.original for one in done.comparisons if one.mode == "float32"), ())
    found = []
    for one in done.comparisons:
        judged = one
        if one.verdict == "different" and one.scales and one.alike:
            if one.mode != "float32":
                judged = against_own(one, exact)
            elif one.largest is not None and one.largest <= ROUNDING:
                words = f"{one.losses[0]} losses within {one.largest:.1e} relative"
                judged = replace(one, verdict="close", words=words)
            if judged.verdict == "different":
                judged = by_own_drift(one)
        if judged.verdict == "close":
            judged = replace(judged, words=f"{judged.words}; rounding differs by lines {where}")
        found.append(judged)
    return replace(done, comparisons=tuple(found))


def drift(original: Sequence[float], nudged: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return how far runs with nudged weights are from ``original``, the most up to each loss.

    It ends where one of them does.
    """
    most, found = 0.0, []
    for own, *others in zip(original, *nudged, strict=False):
        most = max([most, *(_relative(own, other) for other in others)])
        found.append(most)
    return tuple(found)


def by_own_drift(one: Comparison) -> Comparison:
    """Judge losses by how far rounding alone moves those of the original, where that was run."""
    if not one.own:
        return one
    apart = [_relative(a, b) for a, b in zip(one.original, one.port, strict=True)]
    if len(one.own) < len(apart) or not apart:
        return replace(one, own=())
    own, most = one.own[len(apart) - 1], max(apart)
    if own > _LOST:
        words = (
            f"{one.words}; rounding alone moves the original itself by {own:.1e}: too much to tell"
        )
        return replace(one, own=(), words=words)
    allowed = (SENSITIVE * moved + CLOSE["float32"] for moved in one.own)
    if not all(ours <= most for ours, most in zip(apart, allowed, strict=False)):
        words = f"{one.words}; one unit in the last place moves the original by {own:.1e}"
        return replace(one, own=(), words=words)
    words = (
        f"{len(apart)} losses within {most:.1e} relative, the same within the original's own "
        f"sensitivity to rounding: one unit in the last place of its weights moves it by {own:.1e}"
    )
    return replace(one, verdict="close", words=words)


def compare(mode: str, original: Run, port: Run, options: VerifyOptions) -> Comparison:
    """Return how two runs compare.

    Args:
        mode: one of ``MODES``.
        original: what the original recorded.
        port: what the port recorded.
        options: how they ran.
    """
    close = CLOSE[mode]
    late = ""
    if _are_cut(original, port):
        ends = {original.end, port.end}
        original, port = _before_late(original, port)
        late = f"; no more in {options.enough:g} s"
        if "late" in ends:
            late = f"; the time limit of {options.time_limit:g} s ended them there"
        # what nothing scales is without a number behind an overflow: nothing more is to be seen
        seen = options.at + (2 if original.scales else 1)
        if len(original.losses) < (seen if mode == "overflow" else 2):
            words = f"only {len(original.losses)} losses in {options.time_limit:g} s"
            counts = (len(original.losses), len(port.losses))
            return Comparison(mode, "not compared", counts, None, True, None, words)
    elif _is_infinite(mode, original, port, options):
        name = "the original" if original.end == "failed" else "the port"
        original, port = _before_late(original, port)
        late = f"; nothing scales the loss, and what had become infinite ended {name} there"
    elif original.end == port.end == "failed" and original.losses and port.losses:
        counts = (len(original.losses), len(port.losses))
        planted = mode == "overflow" and not original.scales and min(counts) > options.at
        if max(counts) < LEAST and not planted:  # what came after its first steps nobody has seen
            words = f"both stopped after {_losses(counts[0])}: {_how(original, options)}"
            return Comparison(mode, "not compared", counts, None, True, None, words)
        late = f"; both stopped there: {_how(original, options)}"
    counts = (len(original.losses), len(port.losses))
    both = list(zip(original.losses, port.losses, strict=False))
    apart = [_relative(a, b) for a, b in both]
    scales = original.scales == port.scales
    pairs = zip(original.scales, port.scales, strict=False)
    differs = [i for i, d in enumerate(apart) if d > close] + [
        i for i, (a, b) in enumerate(pairs) if a != b
    ]
    largest = max(apart, default=None)
    base = Comparison(
        mode,
        "different",
        counts,
        largest,
        scales,
        min(differs, default=None),
        steps=original.steps,
        planted=mode != "overflow" or min(counts) > options.at,
        stopped=port.stopped,
        original=original.losses,
        port=port.losses,
        original_scales=original.scales,
        port_scales=port.scales,
    )
    for name, run in (("the original", original), ("the port", port)):
        if not run.losses:
            how = _how(run, options)
            if mode != "float32" and run is port and _ASCEND in how:
                return replace(base, verdict=NOT_RUN, words=_NEEDS_ASCEND)
            words = f"{name} recorded no loss: {how}"
            return replace(base, verdict="not compared", words=words)
    alike = (original.steps, original.end, counts[0]) == (port.steps, port.end, counts[1])
    base = replace(base, alike=alike)
    if not base.planted:
        late += f"; no overflow was planted: it would be in loss {options.at + 1}"
    if largest == 0.0 and scales and alike:
        words = f"{counts[0]} losses equal bit for bit, {_scales(original)}, {original.steps} steps"
        words += late
        return replace(base, verdict="same", words=words)
    if not differs and scales and alike:
        words = f"{counts[0]} losses within {largest:.1e} relative, {_scales(original)}"
        words += late
        return replace(base, verdict="close", words=words)
    return replace(base, words=_difference(original, port, base, options))


def alike_not_run(found: Sequence[Comparison]) -> list[Comparison]:
    """Return comparisons of one port, where a mode that was not run ended the later ones."""
    last = next((one for one in found if one.verdict == NOT_RUN), None)
    if last is None:
        return list(found)
    return [
        one if one.losses[1] else replace(one, verdict=NOT_RUN, words=last.words) for one in found
    ]


def stopped_alone(one: Comparison) -> Comparison:
    """Judge a step with stand-ins whose port stopped, and was alike as far as it came.

    What stands in for what is not there may have stopped it: nothing is known of the rest.
    """
    came = one.losses[1]
    if (
        one.verdict != "different"
        or came >= one.losses[0]
        or (one.largest or 0.0) > CLOSE[one.mode]
    ):
        return one
    ours = one.port_scales
    if ours != one.original_scales[: len(ours)] or "the port stopped" not in one.words:
        return one
    return replace(one, verdict="not compared")


def _is_infinite(mode: str, original: Run, port: Run, options: VerifyOptions) -> bool:
    """Return whether one run failed by what the planted overflow left in the parameters.

    Without a loss scale nothing skips that step; what is checked then is each framework's own.
    """
    both = (original, port)
    failed = [run.end for run in both].count("failed")
    counts = [len(run.losses) for run in both]
    # one of both may ask whether a loss is finite before it steps, the other behind
    apart = failed == 1 or (failed == 2 and abs(counts[0] - counts[1]) == 1)
    scaled = original.scales or port.scales
    return mode == "overflow" and not scaled and apart and min(counts) > options.at


def _are_cut(original: Run, port: Run) -> bool:
    """Return whether time alone ended the run that came less far; one that failed says more."""
    runs = (original, port)
    if not (original.losses and port.losses):
        return False
    came = max(len(r.losses) + (r.end == "short") for r in runs)  # at its end a loss was there
    ended = [run for run in runs if run.end not in ("late", "short")]
    return len(ended) < len(runs) and all(len(run.losses) >= came for run in ended)


def _before_late(original: Run, port: Run) -> tuple[Run, Run]:
    """Return both up to the last loss that both have; where they stopped says nothing else.

    Steps and scales are those of before that loss: what came after it, one may have done alone.
    """
    losses = min(len(original.losses), len(port.losses))
    scales = min(len(original.scales), len(port.scales))
    steps = min(original.steps, port.steps)

    def cut(run: Run) -> Run:
        moved = run.before[losses - 1] if len(run.before) >= losses > 0 else (steps, scales)
        kept = run.scales[: moved[1]]
        return replace(run, losses=run.losses[:losses], scales=kept, steps=moved[0], end="ok")

    return cut(original), cut(port)


def _relative(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))


def _scales(run: Run) -> str:
    if not run.scales:
        return "no loss scale"
    return f"scale {run.scales[0]:g} to {run.scales[-1]:g} over {len(run.scales)} updates, equal"


def _losses(count: int) -> str:
    return "1 loss" if count == 1 else f"{count} losses"


def _how(run: Run, options: VerifyOptions) -> str:
    if run.end == "late":
        return f"it was ended after {options.time_limit:g} s"
    return run.words or "it ended without a word"


def _difference(original: Run, port: Run, base: Comparison, options: VerifyOptions) -> str:
    parts = []
    for name, run in (("the original", original), ("the port", port)):
        if run.end != "ok":
            parts.append(f"{name} stopped after {len(run.losses)} losses: {_how(run, options)}")
    if base.first is not None:
        parts.append(f"first difference at {base.first}")
    if base.largest:
        parts.append(f"losses up to {base.largest:.1e} relative apart")
    if not base.scales:
        parts.append("scales differ")
    if original.steps != port.steps:
        parts.append(f"{original.steps} steps against {port.steps}")
    if len(original.losses) != len(port.losses):
        parts.append(f"{len(original.losses)} losses against {len(port.losses)}")
    return "; ".join(parts)
