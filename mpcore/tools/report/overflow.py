"""The post-mortems of skipped steps, as the reader sees them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, isnan, log2
from typing import Any

from mpcore.tools.report.numbers import NONE, format_scale, format_times, number
from mpcore.tools.report.view import grouped

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
        rule: the smallest cure in a policy's words; may be empty.
        cures: whether it was tried and cured.
        whole: the text of the policy with that cure; may be empty.
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
    cures: bool
    whole: str
    constants: tuple[str, ...]
    tried: tuple[str, ...]
    advice: str


def overflow_views(result: dict[str, Any]) -> list[Overflow]:
    """Return the post-mortems of every run; those that agree are one."""
    found = [(run, dead) for run in result["runs"] for dead in run.get("postmortems") or []]
    return [_view(group) for group in grouped(found, lambda pair: _identity(pair[1])).values()]


def _identity(found: dict[str, Any]) -> str:
    return "\n".join(
        str(found.get(key)) for key in ("phase", "layer", "op", "dtype", "rule", "policy")
    )


def _view(found: list[tuple[dict[str, Any], dict[str, Any]]]) -> Overflow:
    group = [dead for _, dead in found]
    runs = grouped(found, lambda pair: f"{pair[0]['backend']}\n{pair[0]['policy']}")
    worst = max(group, key=_peak)
    peak, limit = number(worst.get("peak")), number(worst.get("limit"))
    scales = sorted({number(found.get("scale")) for found in group} - {inf})
    return Overflow(
        runs=tuple(
            (
                pairs[0][0]["backend"],
                pairs[0][0]["policy"],
                step_ranges([dead["step"] for _, dead in pairs]),
            )
            for pairs in runs.values()
        ),
        unscaled=worst.get("phase") in _UNSCALED,
        phase=worst.get("phase") or NONE,
        layer=_place(worst),
        dtype=worst.get("dtype") or "",
        peak="" if isnan(peak) else f"{peak:.3g}",
        limit="" if isnan(limit) else f"{limit:.5g}",
        over=_over(peak, limit),
        length=_length(peak, limit),
        mark=_BELOW / _OCTAVES,
        scale=" to ".join(dict.fromkeys(format_scale(scales[i]) for i in (0, -1) if scales)),
        safe=_safe(group, worst.get("phase")),
        rule=worst.get("rule") or "",
        cures=bool(worst.get("cures")),
        whole=worst.get("policy") or "",
        constants=tuple(_constant(found) for found in worst.get("constants") or []),
        tried=tuple(_told(found) for found in worst.get("tried") or []),
        advice=worst.get("advice") or "",
    )


def _peak(found: dict[str, Any]) -> float:
    peak = number(found.get("peak"))
    return -inf if isnan(peak) else peak


def _over(peak: float, limit: float) -> str:
    if isnan(peak) or not limit > 0:
        return ""
    return f"{format_times(peak / limit)} the limit" if isfinite(peak) else "out of float32 too"


def _length(peak: float, limit: float) -> float:
    if isnan(peak) or not limit > 0 or peak <= 0:
        return 0.0
    octaves = log2(peak / limit) if isfinite(peak) else inf
    return min(max((octaves + _BELOW) / _OCTAVES, 0.0), 1.0)


def _place(found: dict[str, Any]) -> str:
    kind = f"({found['type']})" if found.get("type") else ""
    op = f"in {found['op']}" if found.get("op") else ""
    code = _CODE.get(found.get("phase") or "", "(model)")
    return " ".join(filter(None, (found.get("layer") or code, kind, op)))


def _safe(group: list[dict[str, Any]], phase: Any) -> str:
    scales = [number(found.get("safe_scale")) for found in group]
    if any(isnan(scale) for scale in scales):
        return "does not matter: nothing was scaled yet" if phase in _UNSCALED else "none"
    return format_scale(min(scales))


def _constant(found: dict[str, Any]) -> str:
    where, value = found.get("where") or "(model)", number(found.get("value"))
    limit, better = number(found.get("limit")), number(found.get("suggest"))
    side = "ends at" if abs(value) > limit else "has nothing between 0 and"
    return f"{where}: {value:g}, the format {side} {limit:g}; use {better:g}"


def _told(found: dict[str, Any]) -> str:
    how = "the batch passes" if found.get("passed") else found.get("note") or "still overflows"
    return f"{found.get('rule')}: {how}"


def step_ranges(steps: list[int]) -> str:
    """Return steps with those in a row as one range.

    Example:
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
