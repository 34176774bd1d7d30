"""The neutral form of weights, which has torch's layouts, and nnx's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flax import nnx

from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.errors import ExperimentError
from mpcore_jax.modules import variables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    Arrays = dict[str, npt.NDArray[np.float32]]
    Found = Iterable[tuple[str, Any, str]]

__all__ = ["read", "write"]

_NEUTRAL = {
    "kernel": "weight",
    "embedding": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}


def read(found: Found, values: Mapping[str, npt.NDArray[np.float32]]) -> list[LayerWeights]:
    """Return weights by layer, of those in ``values``."""
    made = []
    for path, layer, category in found:
        if category == "container":
            continue
        arrays = {}
        for name in variables(layer):
            whole = f"{path}.{name}" if path else name
            if whole in values:
                value = np.asarray(values[whole], np.float32)
                arrays[_neutral(name)] = np.ascontiguousarray(_turned(layer, name, value))
        if arrays:
            made.append(LayerWeights(path, category or "other", arrays))
    return made


def write(found: Found, own: Arrays, weights: Iterable[LayerWeights]) -> Arrays:
    """Return the values by path that ``weights`` means; all others as in ``own``."""
    put = dict(own)
    given = {layer.path: layer.arrays for layer in weights}
    for path, layer, category in found:
        arrays = {} if category == "container" else given.get(path, {})
        for name in variables(layer) if arrays else ():
            whole, neutral = f"{path}.{name}" if path else name, _neutral(name)
            if neutral not in arrays:
                continue
            value = _turned(layer, name, arrays[neutral], back=True)
            if value.shape != own[whole].shape:
                msg = f"{whole} must have shape {own[whole].shape}, got {value.shape}"
                raise ExperimentError(msg)
            put[whole] = np.ascontiguousarray(value, np.float32)
    return put


def _neutral(name: str) -> str:
    return _NEUTRAL.get(name, name)


def _turned(layer: Any, name: str, value: Any, *, back: bool = False) -> Any:
    """Move the axes of a kernel: nnx has (*kernel, in, out), torch (out, in, *kernel)."""
    if name != "kernel" or not isinstance(layer, nnx.Linear | nnx.Conv | nnx.ConvTranspose):
        return value
    if back:
        return np.moveaxis(value, (0, 1), (-1, -2))
    return np.moveaxis(value, (-1, -2), (0, 1))
