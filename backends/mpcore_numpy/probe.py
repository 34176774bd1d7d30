"""What ``mpcore doctor`` runs in numpy: its own float16, forward only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.backend.probe import Case, Prepared
from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

__all__ = ["about", "families", "prepare", "read"]

families: tuple[str, ...] = ("matmul", "elementwise", "norm", "softmax")
"""numpy has no convolution, no recurrent layer and no gradients."""


def about() -> dict[str, Any]:
    """Return the version; numpy does not tell how many threads its matrix product uses."""
    return {
        "versions": {"numpy": np.__version__},
        "device": "cpu",
        "devices": ["cpu"],
        "threads": None,
        "settings": {},
    }


def prepare(family: str, dtype: str, case: Case, *, grad: bool) -> Prepared:
    """Return the operation in numpy's own arithmetic of ``dtype``.

    Raises:
        BackendError: for gradients and for bfloat16, which numpy does not have.
    """
    if grad:
        msg = "numpy has no gradients"
        raise BackendError(msg)
    if dtype == "bfloat16":
        msg = "numpy has no bfloat16"
        raise BackendError(msg)
    inputs = {name: a.astype(dtype) for name, a in case.inputs.items()}
    return Prepared(lambda: {"y": _FORWARD[family](inputs)})


def read(tensor: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], str]:
    """Return the values in float32 and the array's dtype."""
    return tensor.astype(np.float32), tensor.dtype.name


def _norm(v: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    centred = v["x"] - v["x"].mean(-1, keepdims=True)
    scale = np.sqrt((centred * centred).mean(-1, keepdims=True) + v["x"].dtype.type(1e-5))
    return np.asarray(centred / scale * v["weight"] + v["bias"])


def _softmax(v: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    e = np.exp(v["x"] - v["x"].max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


_FORWARD: dict[str, Callable[[dict[str, npt.NDArray[Any]]], npt.NDArray[Any]]] = {
    "matmul": lambda v: v["a"] @ v["b"],
    "elementwise": lambda v: np.maximum(v["x"] * v["y"] + v["x"], 0),
    "norm": _norm,
    "softmax": _softmax,
}
