"""What a step did to each layer: where gradients lie in their format, how far weights moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.numerics.dtypes import FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from mpcore.amp.amp import Amp
    from mpcore.policy.plan import Plan
    from mpcore.step.result import StepResult

    Weights = Mapping[str, npt.NDArray[np.float32]]

__all__ = ["measure_layers"]


def measure_layers(amp: Amp, result: StepResult, before: Weights) -> dict[str, dict[str, float]]:
    """Return by layer path the numbers of one step that kept its gradients.

    ``zero``: share of elements whose gradient is zero. ``small``: share that is not zero, and
    with the loss scale lies below the smallest normal value of the format that the layer computes
    in: these have lost bits. ``large``: share at the format's largest value, where a device that
    saturates cuts off, or not finite. ``update``: L2 norm of what the weights moved by over that of
    the weights; not there if the step was skipped, or all weights were zero.

    Args:
        amp: what took the step.
        result: the step's record, with ``grads``.
        before: ``amp.weights()`` in front of the step.
    """
    after = amp.weights() if result.stepped else {}
    groups: dict[str, list[str]] = {}
    formats = _formats(amp.plan)
    for name in result.grads:
        groups.setdefault(_layer_of(name, formats), []).append(name)
    return {
        layer: _shares([_array(result.grads[n]) for n in names], result.scale, formats.get(layer))
        | _moved([n for n in names if n in before and n in after], before, after)
        for layer, names in groups.items()
    }


def _formats(plan: Plan) -> dict[str, str]:
    """Return the format that each layer with a path computes in."""
    usual = plan.policy.compute
    found = {row.path: row.compute for row in plan.layers if row.path}
    return {path: name if name in FORMATS else usual for path, name in found.items()}


def _layer_of(name: str, layers: Mapping[str, str]) -> str:
    """Return the innermost layer that a parameter is in; without one, what is left of its name."""
    path = name.rpartition(".")[0]
    while path and path not in layers:
        path = path.rpartition(".")[0]
    return path or name.rpartition(".")[0] or name


def _array(value: Any) -> npt.NDArray[Any]:
    """Return a framework's tensor as an array, wherever it lies."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value)


def _shares(arrays: list[npt.NDArray[Any]], scale: float, name: str | None) -> dict[str, float]:
    if not 0 < scale < np.inf:  # some imitated machines get there
        return {}
    form = FORMATS[name or "float32"]
    # of numpy's own type: a plain number beyond float32 would not be compared with float32
    low, high = np.float64(form.smallest_normal) / scale, np.float64(form.max) / scale
    zero = small = large = 0
    for array in map(np.abs, arrays):
        none = array.size - np.count_nonzero(array)
        zero += none
        small += np.count_nonzero(array < low) - none
        # float32 sums of several gradients may lie beyond, and have lost nothing
        large += np.count_nonzero((array > high * (1 - 1e-6)) & (array < high * (1 + 1e-6)))
        large += np.count_nonzero(~np.isfinite(array))
    size = max(sum(array.size for array in arrays), 1)
    return {"zero": zero / size, "small": small / size, "large": large / size}


def _moved(names: list[str], before: Weights, after: Weights) -> dict[str, float]:
    def norm(arrays: list[npt.NDArray[Any]]) -> float:
        return float(np.sqrt(sum(float(np.vdot(a, a)) for a in arrays)))

    length = norm([before[n].astype(np.float64) for n in names])
    moved = norm([after[n].astype(np.float64) - before[n] for n in names])
    return {"update": moved / length} if np.isfinite(moved) and 0 < length < np.inf else {}
