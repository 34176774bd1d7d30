"""Do two runs agree? One step from the same state, and whole runs against calibrated noise."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf, isnan
from typing import TYPE_CHECKING

import numpy as np

from mpcore.checkpoint.layer_weights import LayerWeights, relative_difference
from mpcore.tools.report.result import Kink, Lockstep

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = [
    "LOCKSTEP_LIMITS",
    "StepDifference",
    "free_difference",
    "lockstep_step",
    "lockstep_summary",
    "noise_tolerance",
    "verdict",
]

LOCKSTEP_LIMITS = {
    # largest relative difference of one float32 step that rounding explains
    "max_rel_loss_diff": 1e-5,
    "max_rel_grad_diff": 1e-4,
    "max_rel_update_diff": 1e-5,
}


@dataclass(frozen=True)
class StepDifference:
    """How far one step of two runs lies apart that started from the same state; relative.

    Attributes:
        max_rel_loss_diff: of the loss.
        max_rel_grad_diff: of the gradient that is farthest apart.
        max_rel_update_diff: of the updated weights that are farthest apart.
    """

    max_rel_loss_diff: float
    max_rel_grad_diff: float
    max_rel_update_diff: float

    def within(self, *names: str) -> bool:
        """Return whether rounding explains the named differences; all if none is named."""
        return all(
            getattr(self, name) <= LOCKSTEP_LIMITS[name] for name in names or LOCKSTEP_LIMITS
        )


_FLOWS_BACK = ("max_rel_grad_diff", "max_rel_update_diff")

_FLOOR = (
    1e-6  # relative: a few float32 roundings, so that a tolerance of zero is not taken literally
)
_MARGIN = 3.0  # the largest of a few runs underestimates what noise can do


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


def lockstep_step(
    losses: tuple[float, float],
    grads: tuple[list[LayerWeights], list[LayerWeights]] | None,
    weights: tuple[list[LayerWeights], list[LayerWeights]],
) -> StepDifference:
    """Return the three relative differences of one step from the same state; never NaN."""
    found = (
        free_difference(losses[:1], losses[1:])[0],
        relative_difference(*grads) if grads else 0.0,
        relative_difference(*weights),
    )
    # NaN would lose every comparison with a largest value, and so pass for no difference.
    return StepDifference(*(inf if isnan(value) else value for value in found))


def lockstep_summary(compute: str, steps: Sequence[StepDifference]) -> Lockstep:
    """Return the largest differences of all steps, isolated kinks apart.

    At a kink the loss agrees but what flows back does not: an input of ReLU or max-pooling lies
    within rounding of the point where the derivative jumps, and two implementations round it to
    different sides. A difference of formula shows at every step; one step of ten, or five in a
    hundred, is the most that is taken for a kink. With more, none is.

    Args:
        compute: compute dtype of the policy; only float32 has limits, and so kinks.
        steps: what ``lockstep_step`` returned for each.
    """
    kinks = tuple(
        Kink(index, step.max_rel_grad_diff, step.max_rel_update_diff)
        for index, step in enumerate(steps)
        if step.within("max_rel_loss_diff") and not step.within(*_FLOWS_BACK)
    )
    if compute != "float32" or len(kinks) > max(1 if len(steps) >= 10 else 0, len(steps) // 20):
        kinks = ()
    apart = {kink.step for kink in kinks}
    rest = {index: step for index, step in enumerate(steps) if index not in apart}
    first = next((index for index, step in rest.items() if not step.within()), None)
    return Lockstep(
        len(steps),
        max(step.max_rel_loss_diff for step in rest.values()),
        max(step.max_rel_grad_diff for step in rest.values()),
        max(step.max_rel_update_diff for step in rest.values()),
        kinks,
        first,
    )


def verdict(
    compute: str,
    lockstep: Lockstep | None,
    differences: Sequence[float],
    noise: Sequence[float],
) -> str:
    """Return ``"same"``, ``"different: ..."``, ``"too noisy to tell"`` or ``"not compared: ..."``.

    Args:
        compute: compute dtype of the policy; only float32 steps have fixed limits.
        lockstep: what ``lockstep_summary`` returned, or None if it was not run.
        differences: relative loss difference of the free runs, per step.
        noise: the tolerance, per step; empty if it was not calibrated.
    """
    steps = _beyond_limits(lockstep) if lockstep and compute == "float32" else []
    reasons = steps + _beyond_noise(differences, noise)
    if reasons:
        return f"different: {', '.join(reasons)}"
    if not noise and (not lockstep or compute != "float32"):
        # Only float32 steps have limits of their own: in 16 bits "same" needs a tolerance.
        return f"not compared: no {'noise' if lockstep else 'lock-step or noise'} runs to judge by"
    return "too noisy to tell" if noise and noise[-1] > 0.5 else f"same{_kinks(lockstep)}"


def _beyond_limits(lockstep: Lockstep) -> list[str]:
    sizes = {name: getattr(lockstep, name) for name in LOCKSTEP_LIMITS}
    return [
        f"one step's {name.removeprefix('max_rel_').removesuffix('_diff')} by "
        f"{sizes[name]:.1e} (limit {limit:.0e})"
        for name, limit in LOCKSTEP_LIMITS.items()
        if not sizes[name] <= limit
    ]


def _kinks(lockstep: Lockstep | None) -> str:
    if lockstep is None or not lockstep.kinks:
        return ""
    where = ", ".join(str(kink.step) for kink in lockstep.kinks)
    size = max(kink.max_rel_grad_diff for kink in lockstep.kinks)
    return (
        f": but at step {where} of {lockstep.steps} a ReLU or max-pooling rounds to the other "
        f"side (gradient by {size:.1e})"
    )


def _beyond_noise(differences: Sequence[float], noise: Sequence[float]) -> list[str]:
    """Return, as one reason or none, where the free runs differ by more than noise explains."""
    sizes = np.array(differences)
    limits = np.array(noise) if noise else np.full(len(sizes), np.finfo(np.float64).max)
    lost = np.isinf(limits)  # noise alone decides there: nothing can be beyond it
    ratios = np.where(lost, 0.0, sizes / np.where(lost, 1.0, limits))
    worst = int(np.argmax(ratios))
    if isinf(ratios[worst]):
        return [f"only one loss is finite at step {worst}"]
    times = f"{ratios[worst]:.1f}" if ratios[worst] < 1e4 else f"{ratios[worst]:.0e}"
    return [f"beyond noise by {times}x at step {worst}"] if ratios[worst] > 1 else []
