"""Loss scales that move by other rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.errors import LossScaleError
from mpcore.scaling.loss_scale import PRESETS
from mpcore.scaling.transition import advance, initial_state
from mpcore.tools.divergence.root_cause import RootCause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.scaling.transition import LossScale
    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.divergence.root_cause import Case

    Trajectory = tuple[tuple[float, bool], ...]

__all__ = ["from_scales"]


def from_scales(case: Case) -> Iterator[RootCause]:
    """Yield that two loss scales part although the same steps were skipped before."""
    a, b = (_trajectory(side) for side in (case.reference, case.own))
    if not (a and b) or "none" in (_kind(case.reference), _kind(case.own)):
        return
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x[0] != y[0]), None)
    if at is None or any(x[1] != y[1] for x, y in zip(a[:at], b[:at], strict=True)):
        return  # the same rule, or other gradients: the scale only follows them
    sentences = [f"before step {at} the scale is {a[at][0]:g} there and {b[at][0]:g} here"]
    if at:
        skipped = "skipped" if not a[at - 1][1] else "made"
        sentences.append(f"both {skipped} step {at - 1}, at the scale {a[at - 1][0]:g}")
    names = [_presets(t) for t in (a, b)]
    sentences += [
        f"{who} moves as {', '.join(found[:4])}"
        for who, found in zip(("the reference", "this side"), names, strict=True)
        if found
    ]
    rules = [side.plan.get("loss_scale", "") for side in (case.reference, case.own)]
    if rules[0] != rules[1]:
        sentences.append(f"the rules are written as {rules[0]} and {rules[1]}")
    part = "init_scale" if at == 0 else ("growth" if a[at - 1][1] else "back-off or its floor")
    yield RootCause(
        "scaler rule",
        "(loss scale)",
        "(loss scale)",
        "scaler",
        tuple(sentences),
        f"give both the same rule of the loss scale: they differ in {part}"
        + (f"; the reference's is {rules[0]}" if rules[0] != rules[1] else ""),
        "sure",
    )


def _kind(side: Evidence) -> str:
    return str(side.plan.get("loss_scale", "")).partition("(")[0].strip()


def _trajectory(side: Evidence) -> Trajectory:
    if side.trajectory:
        return side.trajectory
    return tuple((float(step["scale"]), bool(step["stepped"])) for step in side.steps)


def _presets(trajectory: Trajectory) -> list[str]:
    """Return the presets that make the scales, started where the run started."""
    if all(scale == trajectory[0][0] for scale, _ in trajectory):
        return []
    return [name for name, rule in PRESETS.items() if _makes(rule, trajectory)]


def _makes(rule: LossScale, trajectory: Trajectory) -> bool:
    try:
        state = initial_state(rule)._replace(scale=trajectory[0][0])
        free = rule.changed(max_skips=None) if rule.quirks.max_skips is not None else rule
        for scale, stepped in trajectory:
            if state.scale != scale:
                return False
            state = advance(free, state, stepped)
    except LossScaleError:
        return False
    return True
