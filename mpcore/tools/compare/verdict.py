"""Do two runs agree? What every judged number says, and whole runs against calibrated noise."""

from __future__ import annotations

from math import isinf
from typing import TYPE_CHECKING

import numpy as np

from mpcore.tools.report.result import Number

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from mpcore.tools.report.result import Kink

__all__ = ["SAME_LOSS", "curve_number", "free_difference", "noise_tolerance", "verdict"]

SAME_LOSS = 1e-5
"""Relative: losses of one float32 step that lie nearer than this are the same."""

_FLOOR = (
    1e-6  # relative: a few float32 roundings, so that a tolerance of zero is not taken literally
)
_MARGIN = 3.0  # the largest of a few runs underestimates what noise can do
_NOISY = 0.5  # relative: where noise alone moves the loss by half, a curve tells nothing

_WORDS = {
    "loss": "one step's loss",
    "gradient": "one step's gradient",
    "update": "one step's update",
    "statistics": "one step's running statistics",
    "zeros": "zeros in one step's gradient",
    "accuracy": "the test accuracy",
}


def _curve(losses: Sequence[float | str]) -> npt.NDArray[np.float64]:
    return np.array([float(loss) for loss in losses])


def noise_tolerance(
    losses: Sequence[float | str], moved: Sequence[Sequence[float | str]]
) -> list[float]:
    """Return, per step, how far noise alone moves the loss, relative, dimensionless.

    Args:
        losses: the run itself.
        moved: runs whose initial weights were moved by one unit in the last place.

    Returns:
        Three times the largest relative difference up to each step, at least 1e-6; inf from
        where noise alone decides whether the loss is finite.
    """
    differences = [free_difference(other, losses) for other in moved]
    if not differences:
        return []
    largest = np.maximum.accumulate(np.max(differences, axis=0))
    return [float(value) for value in np.maximum(_MARGIN * largest, _FLOOR)]


def free_difference(a: Sequence[float | str], b: Sequence[float | str]) -> list[float]:
    """Return, per step, the relative difference of two losses; inf where only one is finite."""
    left, right = _curve(a), _curve(b)
    with np.errstate(invalid="ignore"):
        difference = np.abs(left - right) / np.maximum(np.abs(right), 1e-12)
    both = ~np.isfinite(left) & ~np.isfinite(right)
    difference = np.where(both, 0.0, np.where(np.isnan(difference), np.inf, difference))
    return [float(value) for value in difference]


def curve_number(differences: Sequence[float], noise: Sequence[float]) -> Number | None:
    """Return the step of two loss curves that lies farthest beyond noise; None without any.

    Args:
        differences: relative loss difference of the free runs, per step.
        noise: the tolerance, per step; empty if it was not calibrated.
    """
    if not differences:
        return None
    sizes = np.array(differences)
    limits = np.array(noise) if noise else np.full(len(sizes), np.inf)
    lost = np.isinf(limits)  # noise alone decides there: nothing can be beyond it
    ratios = np.where(lost, np.where(np.isinf(sizes) & (not noise), np.inf, 0.0), sizes)
    ratios = np.where(lost, ratios, sizes / np.where(lost, 1.0, limits))
    worst = int(np.argmax(ratios)) if ratios.any() else int(np.argmax(sizes))
    beyond = bool(ratios[worst] > 1)
    return Number("curve", float(sizes[worst]), float(limits[worst]), beyond, step=worst)


def verdict(
    numbers: Sequence[Number],
    kinks: Sequence[Kink] = (),
    *,
    steps: int = 0,
    noise: bool = True,
    skips: str = "",
) -> str:
    """Return what two runs are to each other.

    Args:
        numbers: everything that was judged.
        kinks: steps that were set apart; each with its proof or without.
        steps: single steps that were judged; 0 if none were.
        noise: whether noise was calibrated.
        skips: a step that only one side skipped, in words.

    Returns:
        ``"same"``, ``"same: ..."``, ``"different: ..."``, ``"known difference: ..."``, ``"too
        noisy to tell"`` or ``"not compared: ..."``.
    """
    beyond = [number for number in numbers if number.beyond]
    apart = [number for number in beyond if not number.known]
    if apart or skips:
        return f"different: {', '.join([*map(_told, apart), *([skips] if skips else [])])}"
    if beyond:
        names = dict.fromkeys(number.known for number in beyond)
        return f"known difference: {', '.join(names)}; {', '.join(map(_told, beyond))}"
    curve = next((number for number in numbers if number.name == "curve"), None)
    if not noise:
        # Without moved runs nothing says how far rounding goes, unless each step is in float32.
        return f"not compared: no {'noise' if steps else 'lock-step or noise'} runs to judge by"
    unproved = [kink for kink in kinks if not kink.layer]
    if unproved:
        return f"too noisy to tell: {_kinks(unproved, steps)}, and nothing proves why"
    if curve is not None and curve.tolerance > _NOISY and not isinf(curve.tolerance):
        return "too noisy to tell"
    return f"same: but {_kinks(kinks, steps)}: {kinks[0].proof}" if kinks else "same"


def _kinks(kinks: Sequence[Kink], steps: int) -> str:
    where = ", ".join(str(kink.step) for kink in kinks)
    size = max(kink.max_rel_grad_diff for kink in kinks)
    return f"at step {where} of {steps} a gradient lies {size:.1e} apart"


def _told(number: Number) -> str:
    if number.name == "curve":
        if isinf(number.size):
            return f"only one loss is finite at step {number.step}"
        ratio = number.size / number.tolerance
        times = f"{ratio:.1f}" if ratio < 1e4 else f"{ratio:.0e}"
        return f"beyond noise by {times}x at step {number.step}"
    where = f" in {number.tensor}" if number.tensor else ""
    more = f" and {number.count - 1} more" if number.count > 1 else ""
    size = f"{number.size:.1e} (noise explains {number.tolerance:.1e})"
    return f"{_WORDS[number.name]} by {size}{where}{more}"
