"""Operators of a tensor and an array of numpy: numpy computes them, as where torch does them."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_SAME = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


def _by_numpy(ours: Callable[[Any, Any], Any], given: Any, other: Any) -> Any:
    return Tensor(np.asarray(ours(given.asnumpy(), other)))


def _over(tensor: Any, array: Any) -> Any:
    """Return ``array / tensor``: torch takes the reciprocal, float32 of whole numbers."""
    floats = tensor if tensor.is_floating_point() else tensor.float()
    return _by_numpy(operator.mul, ops.reciprocal(floats), array)


def _install(name: str, ours: Callable[[Any, Any], Any]) -> None:
    native = getattr(Tensor, name)

    @functools.wraps(native)
    def run(self: Any, other: Any) -> Any:
        return ours(self, other) if isinstance(other, np.ndarray) else native(self, other)

    setattr(Tensor, name, run)


for _one in _SAME:  # MindSpore's raise
    _install(f"__{_one}__", functools.partial(_by_numpy, getattr(operator, _one)))
_install("__rtruediv__", _over)
