"""A post-mortem's sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mpcore.scaling.transition import advance, initial_state
from mpcore.tools.diagnosis.record import PHASES

if TYPE_CHECKING:
    from mpcore.scaling.loss_scale import LossScale
    from mpcore.tools.diagnosis.fix import Fix
    from mpcore.tools.diagnosis.locate import Finding
    from mpcore.tools.diagnosis.record import Constant

__all__ = ["advice", "sentence", "skipped_until"]

_MANY = 4  # skipped steps that are worth a word about where the scale begins
_MOST = 200  # that are counted


def skipped_until(safe: float, scale: float, rule: LossScale) -> int:
    """Return how many steps in a row a scale skips until it is at most ``safe``.

    Args:
        safe: the largest scale that passes.
        scale: of the step that was skipped first.
        rule: of the loss scale.
    """
    state = initial_state(rule)._replace(scale=scale)
    for count in range(1, _MOST):
        state = advance(rule, state, False)
        if float(state.scale) <= safe:
            return count
    return _MOST


def sentence(finding: Finding, limit: float, step: int) -> str:
    """Return the finding: what, where, in which format, and by how much."""
    begin = f"Step {step} overflowed" if step else "The step overflows"
    where = f"{begin} {PHASES[finding.phase]}{_place(finding)}"
    if finding.source and finding.anyway:
        return f"{where}: {finding.source} holds inf or NaN before anything is computed."
    if finding.source:
        return (
            f"{where}: {finding.source} does not fit {finding.dtype}, which ends at {limit:g}; the "
            f"largest value there is {finding.peak:.3g} in a float32 run."
        )
    if finding.dies:
        size = f", {finding.peak:.3g} in a float32 run," if finding.peak > limit else ""
        return (
            f"{where}: it hands on zeros, all finite: a value inside of it{size} leaves "
            f"{finding.dtype}, which ends at {limit:g}, and what is divided by it is 0."
        )
    if not math.isfinite(finding.peak):
        return f"{where}: not even float32 can hold it."
    size = f"{finding.peak:.3g} in a float32 run"
    if finding.peak > limit:
        return f"{where}: {finding.dtype} ends at {limit:g}, and there it is {size}."
    if finding.phase == "loss":
        return f"{where}: it is {size}, and not finite in {finding.dtype}."
    return (
        f"{where}: not finite in {finding.dtype}, which ends at {limit:g}, though what comes out "
        f"is {size}: a value on the way there was out of range."
    )


def _place(finding: Finding) -> str:
    if finding.phase == "loss":
        return ""
    if not finding.layer:
        at = f", op {finding.op}" if finding.op else ""
        return f" of the model's own code{at}"
    kind = f" ({finding.type})" if finding.type else ""
    at = f", op {finding.op}" if finding.op else ""
    return f" at {finding.layer}{kind}{at}"


def advice(
    finding: Finding,
    fix: Fix,
    safe: float | None,
    rule: LossScale,
    constants: tuple[Constant, ...],
    scale: float = 1.0,
) -> str:
    """Return what to do."""
    if finding.source and finding.anyway:
        return (
            f"No precision fixes that: look at {finding.source} "
            "(data, an earlier step that went wrong, or a constant of the model)."
        )
    if finding.phase == "unscale":
        return (
            "A loss scale below 1 makes gradients larger when it is divided out: raise min_scale."
        )
    if finding.phase == "clip":
        return (
            "Every gradient is finite, but their norm is beyond float32, so clipping makes them "
            "zero: divide the loss, such as by taking a mean instead of a sum."
        )
    if finding.anyway:
        return (
            "No precision fixes that: float32 overflows too. Look at the learning rate, at the "
            "size of inputs and targets, and at divisions and logarithms of zero."
        )
    parts = []
    if safe is not None and safe >= rule.min_scale and rule.kind == "dynamic":
        skips = skipped_until(safe, scale, rule)
        many = skips > _MANY
        parts.append(
            f"The loss scale backs off to {safe:g} by itself, after {skips} skipped "
            f"step{'' if skips == 1 else 's'}; "
            + (
                f"begin with init_scale={safe:g} to save them."
                if many
                else "nothing needs to change unless it happens again and again."
            )
        )
    elif safe is not None:
        parts.append(f"A loss scale of at most {safe:g} lets the batch pass.")
    if constants:
        first = constants[0]
        if abs(first.value) > abs(first.suggest) and first.value < 0:
            parts.append(
                f"Use {first.suggest:g} instead of the mask of {first.value:g}: it becomes -inf, "
                "and a row that it covers whole becomes NaN."
            )
        else:
            parts.append(f"Use {first.suggest:g} instead of the constant {first.value:g}.")
    if fix.rule is not None:
        parts.append(f"The smallest change of the policy that lets the batch pass: {fix.rule}.")
    elif not parts:
        parts.append("None of the policies that were tried lets the batch pass.")
    return " ".join(parts)
