"""Do two runs agree? One step from the same state, and whole runs against calibrated noise."""

from __future__ import annotations

from math import inf, isinf, isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.checkpoint.layer_weights import LayerWeights, relative_difference

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = [
    "LOCKSTEP_LIMITS",
    "band",
    "free_difference",
    "lockstep_step",
    "lockstep_summary",
    "verdict",
]

LOCKSTEP_LIMITS = {
    # largest relative difference of one float32 step that rounding explains
    "max_rel_loss_diff": 1e-5,
    "max_rel_grad_diff": 1e-4,
    "max_rel_update_diff": 1e-5,
}

_FLOWS_BACK = ("max_rel_grad_diff", "max_rel_update_diff")

_FLOOR = 1e-6  # relative: a few float32 roundings, so that a band of zero is not taken literally
_MARGIN = 3.0  # the largest of a few runs underestimates what noise can do


def _curve(losses: Sequence[float | str]) -> npt.NDArray[np.float64]:
    return np.array([float(loss) for loss in losses])


def band(losses: Sequence[float | str], moved: Sequence[Sequence[float | str]]) -> list[float]:
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
) -> dict[str, float]:
    """Return the three relative differences of one step from the same state; never NaN."""
    found = {
        "max_rel_loss_diff": free_difference(losses[:1], losses[1:])[0],
        "max_rel_grad_diff": relative_difference(*grads) if grads else 0.0,
        "max_rel_update_diff": relative_difference(*weights),
    }
    # NaN would lose every comparison with a largest value, and so pass for no difference.
    return {name: inf if isnan(value) else value for name, value in found.items()}


def lockstep_summary(compute: str, steps: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the largest differences of all steps, isolated kinks apart.

    At a kink the loss agrees but what flows back does not: an input of ReLU or max-pooling lies
    within rounding of the point where the derivative jumps, and two implementations round it to
    different sides. A difference of formula shows at every step; one step of ten, or five in a
    hundred, is the most that is taken for a kink. With more, none is.

    Args:
        compute: compute dtype of the policy; only float32 has limits, and so kinks.
        steps: what ``lockstep_step`` returned for each.

    Returns:
        ``steps`` (their number), the three largest differences of the steps that are no kink,
        and ``kinks``: for each its ``step`` and its gradient and update difference.
    """
    kinks = [
        {"step": index, **{name: step[name] for name in _FLOWS_BACK}}
        for index, step in enumerate(steps)
        if step["max_rel_loss_diff"] <= LOCKSTEP_LIMITS["max_rel_loss_diff"]
        and not all(step[name] <= LOCKSTEP_LIMITS[name] for name in _FLOWS_BACK)
    ]
    if compute != "float32" or len(kinks) > max(1 if len(steps) >= 10 else 0, len(steps) // 20):
        kinks = []
    apart = {kink["step"] for kink in kinks}
    rest = [step for index, step in enumerate(steps) if index not in apart]
    largest = {name: max(step[name] for step in rest) for name in LOCKSTEP_LIMITS}
    return {"steps": len(steps), **largest, "kinks": kinks}


def verdict(
    compute: str,
    lockstep: dict[str, Any] | None,
    differences: Sequence[float],
    noise: Sequence[float],
) -> str:
    """Return ``"same"``, ``"different: ..."``, ``"too noisy to tell"`` or ``"not compared: ..."``.

    Args:
        compute: compute dtype of the policy; only float32 steps have fixed limits.
        lockstep: what ``lockstep_summary`` returned, or None if it was not run.
        differences: relative loss difference of the free runs, per step.
        noise: the band, per step; empty if it was not calibrated.
    """
    parted = _parted(lockstep) if lockstep and compute == "float32" else []
    reasons = parted + _beyond(differences, noise)
    if reasons:
        return f"different: {', '.join(reasons)}"
    if not noise and (not lockstep or compute != "float32"):
        # Only float32 steps have limits of their own: in 16 bits "same" needs a band.
        return f"not compared: no {'noise' if lockstep else 'lock-step or noise'} runs to judge by"
    return "too noisy to tell" if noise and noise[-1] > 0.5 else f"same{_kinks(lockstep or {})}"


def _parted(lockstep: dict[str, Any]) -> list[str]:
    return [
        f"one step's {name.removeprefix('max_rel_').removesuffix('_diff')} by "
        f"{lockstep[name]:.1e} (limit {limit:.0e})"
        for name, limit in LOCKSTEP_LIMITS.items()
        if not lockstep[name] <= limit
    ]


def _kinks(lockstep: dict[str, Any]) -> str:
    kinks = lockstep.get("kinks", [])
    if not kinks:
        return ""
    where = ", ".join(str(kink["step"]) for kink in kinks)
    size = max(kink["max_rel_grad_diff"] for kink in kinks)
    return (
        f": but at step {where} of {lockstep['steps']} a ReLU or max-pooling rounds to the other "
        f"side (gradient by {size:.1e})"
    )


def _beyond(differences: Sequence[float], noise: Sequence[float]) -> list[str]:
    """Return, as one reason or none, where the free runs part by more than noise explains."""
    sizes = np.array(differences)
    limits = np.array(noise) if noise else np.full(len(sizes), np.finfo(np.float64).max)
    lost = np.isinf(limits)  # noise alone decides there: nothing can be beyond it
    ratios = np.where(lost, 0.0, sizes / np.where(lost, 1.0, limits))
    worst = int(np.argmax(ratios))
    if isinf(ratios[worst]):
        return [f"only one loss is finite at step {worst}"]
    times = f"{ratios[worst]:.1f}" if ratios[worst] < 1e4 else f"{ratios[worst]:.0e}"
    return [f"beyond noise by {times}x at step {worst}"] if ratios[worst] > 1 else []
