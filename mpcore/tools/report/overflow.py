"""The post-mortems of skipped steps, as the reader sees them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, isnan, log2
from typing import TYPE_CHECKING

from mpcore.tools.report.numbers import NONE, format_scale, format_times
from mpcore.tools.report.view import grouped

if TYPE_CHECKING:
    from mpcore.tools.diagnosis.record import PostMortem
    from mpcore.tools.report.result import Result, Run

__all__ = ["Overflow", "overflow_views", "step_ranges"]

_OCTAVES = 24.0  # shown of a bar: 8 below the format's limit, 16 above
_BELOW = 8.0
_CODE = {"loss": "(loss)", "clip": "(norm of the gradients)"}  # outside of every layer, by phase
_UNSCALED = ("forward", "loss")  # phases


@dataclass(frozen=True)
class Overflow:
    """Post-mortems that say the same of several steps and runs.

    Attributes:
        runs: backend, policy and steps (such as ``"0 to 1, 12"``, from 0) of each run.
        unscaled: whether it happened before the loss scale had a part in it.
        phase: in which pass it happened.
        layer: the first that was out of range, its type and op.
        dtype: of what was out of range.
        peak: the largest of these steps; empty if it is not known.
        limit: of the format.
        over: peak over limit, such as ``"2.0x the limit"``.
        length: of the peak's bar, of the whole width, in [0, 1].
        mark: where the limit stands, likewise.
        scale: of these steps.
        safe: the smallest of their largest safe scales, or why there is none.
        rule: the smallest fix in a policy's words; may be empty.
        fixes: whether it was tried and did fix it.
        whole: the text of the policy with that fix; may be empty.
        constants: out of range, a sentence each.
        tried: what else was tried, a sentence each.
        advice: may be empty.
    """

    runs: tuple[tuple[str, str, str], ...]
    unscaled: bool
    phase: str
    layer: str
    dtype: str
    peak: str
    limit: str
    over: str
    length: float
    mark: float
    scale: str
    safe: str
    rule: str
    fixes: bool
    whole: str
    constants: tuple[str, ...]
    tried: tuple[str, ...]
    advice: str


def overflow_views(result: Result) -> list[Overflow]:
    """Return the post-mortems of every run; those that agree are one."""
    found = [(run, dead) for run in result.runs for dead in run.postmortems]
    return [_view(group) for group in grouped(found, lambda pair: _identity(pair[1])).values()]


def _identity(found: PostMortem) -> str:
    told = (found.phase, found.layer, found.op, found.dtype, found.rule, found.policy)
    return "\n".join(map(str, told))


def _view(found: list[tuple[Run, PostMortem]]) -> Overflow:
    group = [dead for _, dead in found]
    worst = max(group, key=lambda dead: -inf if isnan(dead.peak) else dead.peak)
    peak, limit = worst.peak, worst.limit
    scales = sorted({dead.scale for dead in group} - {inf})
    return Overflow(
        runs=tuple(
            (*pairs[0][0].key, step_ranges([dead.step for _, dead in pairs]))
            for pairs in grouped(found, lambda pair: "\n".join(pair[0].key)).values()
        ),
        unscaled=worst.phase in _UNSCALED,
        phase=worst.phase or NONE,
        layer=_place(worst),
        dtype=worst.dtype,
        peak="" if isnan(peak) else f"{peak:.3g}",
        limit="" if isnan(limit) else f"{limit:.5g}",
        over=_over(peak, limit),
        length=_length(peak, limit),
        mark=_BELOW / _OCTAVES,
        scale=" to ".join(dict.fromkeys(format_scale(scales[i]) for i in (0, -1) if scales)),
        safe=_safe(group, worst.phase),
        rule=worst.rule or "",
        fixes=worst.fixes,
        whole=worst.policy or "",
        constants=tuple(map(str, worst.constants)),
        tried=tuple(
            f"{trial.rule}: " + ("the batch passes" if trial.passed else _still(trial.note))
            for trial in worst.tried
        ),
        advice=worst.advice,
    )


def _over(peak: float, limit: float) -> str:
    if isnan(peak) or not limit > 0:
        return ""
    return f"{format_times(peak / limit)} the limit" if isfinite(peak) else "out of float32 too"


def _length(peak: float, limit: float) -> float:
    if isnan(peak) or not limit > 0 or peak <= 0:
        return 0.0
    octaves = log2(peak / limit) if isfinite(peak) else inf
    return min(max((octaves + _BELOW) / _OCTAVES, 0.0), 1.0)


def _place(found: PostMortem) -> str:
    kind = f"({found.type})" if found.type else ""
    op = f"in {found.op}" if found.op else ""
    code = _CODE.get(found.phase, "(model)")
    return " ".join(filter(None, (found.layer or code, kind, op)))


def _safe(group: list[PostMortem], phase: str) -> str:
    scales = [found.safe_scale for found in group]
    known = [scale for scale in scales if scale is not None]
    if len(known) < len(scales):
        return "does not matter: nothing was scaled yet" if phase in _UNSCALED else "none"
    return format_scale(min(known))


def _still(note: str) -> str:
    return note or "still overflows"


def step_ranges(steps: list[int]) -> str:
    """Return steps with those in a row as one range.

    Examples:
        >>> step_ranges([0, 1, 2, 7, 12])
        '0 to 2, 7, 12'
    """
    ranges: list[list[int]] = []
    for step in sorted(steps):
        if ranges and ranges[-1][1] == step - 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in ranges)
