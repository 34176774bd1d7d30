"""A softmax along rows of which one is ``-inf`` throughout, as a padded query's row is.

torch has NaN in that row alone, which scripts fill with zeros. MindSpore's float32 kernel on CPU
has zeros there, and in the rows behind it (mindspore 2.10.0; float16, float64 and other axes are
right). Graphs of ``ms.jit`` hold the operator itself, and are left alone.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore.ops.function import nn_func

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_LIVING = getattr(nn_func, "softmax_impl", None)  # not public: another version may not have it


def _apart(function: Callable[..., Any], axis_of: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator's call that makes dead rows NaN, and the others what they are."""

    @wraps(function)
    def softened(self: Any, x: Any, *axis: Any) -> Any:
        dead = _dead(x, axis_of(self, *axis))
        if dead is None:
            return function(self, x, *axis)
        made = function(self, ops.select(dead, ops.zeros_like(x), x), *axis)
        return ops.select(dead, ops.full_like(made, float("nan")), made)

    return softened


def _dead(x: Any, axis: Any) -> Any:
    """Return where rows are ``-inf`` throughout, of the tensor's shape; None of none."""
    last = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
    if not isinstance(x, Tensor) or x.dtype != ms.float32 or not x.ndim or not x.size:
        return None
    if last not in (-1, x.ndim - 1) or ms.get_context("device_target") != "CPU":
        return None
    rows = np.isneginf(x.asnumpy()).all(-1, keepdims=True)
    return Tensor(np.broadcast_to(rows, x.shape).copy()) if rows.any() else None


def _replace() -> None:
    """Put it before the operator, which mint, ops, layers and tensors share."""
    ops.Softmax.__call__ = _apart(ops.Softmax.__call__, lambda self: self.axis)
    kind = type(_LIVING)
    if _LIVING is not None and kind is not ops.Softmax:
        kind.__call__ = _apart(kind.__call__, lambda _, axis: axis)  # type: ignore[method-assign]


_replace()
