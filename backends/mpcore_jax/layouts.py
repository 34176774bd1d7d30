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
    found = list(found)
    category = {path: kind or "other" for path, _, kind in found}
    made = []
    for path, layer, names in _held(found, values):
        arrays = {}
        for name in names:
            value = np.asarray(values[f"{path}.{name}" if path else name], np.float32)
            arrays[_neutral(name)] = np.ascontiguousarray(_turned(layer, name, value))
        made.append(LayerWeights(path, category[path], arrays))
    return made


def write(found: Found, own: Arrays, weights: Iterable[LayerWeights]) -> Arrays:
    """Return the values by path that ``weights`` means, which are of the same layers in order."""
    put = dict(own)
    for (path, layer, names), given in zip(_held(found, own), weights, strict=True):
        for name in names:
            whole = f"{path}.{name}" if path else name
            value = _turned(layer, name, given.arrays[_neutral(name)], back=True)
            if value.shape != own[whole].shape:
                msg = f"{whole} must have shape {own[whole].shape}, got {value.shape}"
                raise ExperimentError(msg)
            put[whole] = np.ascontiguousarray(value, np.float32)
    return put


def _held(found: Found, values: Mapping[str, Any]) -> list[tuple[str, Any, list[str]]]:
    """Return path, layer and names within it, of the layers that hold any of ``values``."""
    held = []
    for path, layer, category in found:
        inside = [] if category == "container" else list(variables(layer))
        names = [name for name in inside if (f"{path}.{name}" if path else name) in values]
        if names:
            held.append((path, layer, names))
    return held


def _neutral(name: str) -> str:
    return _NEUTRAL.get(name, name)


def _turned(layer: Any, name: str, value: Any, *, back: bool = False) -> Any:
    """Move the axes of a kernel: nnx has (*kernel, in, out), torch (out, in, *kernel)."""
    if name != "kernel" or not isinstance(layer, nnx.Linear | nnx.Conv | nnx.ConvTranspose):
        return value
    if back:
        return np.moveaxis(value, (0, 1), (-1, -2))
    return np.moveaxis(value, (-1, -2), (0, 1))
