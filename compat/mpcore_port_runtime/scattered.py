"""Sums, means, least and greatest of values by the group that an index puts them into.

Source: torch_scatter 2.1.2 ``torch_scatter/scatter.py``, ``utils.py``, ``csrc/cpu/reducer.h``: the
first of equal values is the one that is named, and an empty group holds 0.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mpcore_port_runtime.picks import scatter_add as add_at

__all__ = ["scatter", "scatter_add", "scatter_max", "scatter_mean", "scatter_min", "scatter_sum"]


def _spread(index: Any, other: Any, dim: int) -> Any:
    """Return an index as large as the values that it is of."""
    place = dim + other.ndim if dim < 0 else dim
    if index.ndim == 1:
        index = index.reshape((1,) * place + tuple(index.shape))
    index = index.reshape(tuple(index.shape) + (1,) * (other.ndim - index.ndim))
    return ops.broadcast_to(index, tuple(other.shape))


def _check(out: Any) -> None:
    if out is not None:
        msg = "`out` must be left out: what is scattered is ported without a place to put it into"
        raise NotImplementedError(msg)


def _groups(index: Any, dim_size: int | None) -> int:
    if dim_size is not None:
        return int(dim_size)
    return int(index.max()) + 1 if index.size else 0


def scatter_sum(
    src: Any, index: Any, dim: int = -1, out: Any = None, dim_size: int | None = None
) -> Any:
    """Return the sum of each group.

    Raises:
        NotImplementedError: there is an ``out``.
    """
    _check(out)
    spread = _spread(index, src, dim)
    shape = list(src.shape)
    shape[dim] = _groups(spread, dim_size)
    return add_at(ops.zeros(tuple(shape), src.dtype), dim, spread, src)


scatter_add = scatter_sum


def scatter_mean(
    src: Any, index: Any, dim: int = -1, out: Any = None, dim_size: int | None = None
) -> Any:
    """Return the mean of each group, 0 of an empty one; of whole numbers its floor.

    Raises:
        NotImplementedError: there is an ``out``.
    """
    total = scatter_sum(src, index, dim, out, dim_size)
    place = dim + src.ndim if dim < 0 else dim
    place = min(place, index.ndim - 1)
    ones = ops.ones(tuple(index.shape), src.dtype)
    count = scatter_sum(ones, index, place, None, total.shape[dim])
    count = _spread(ops.maximum(count, ops.ones_like(count)), total, dim)
    return total / count if src.is_floating_point() else ops.floor_divide(total, count)


def _named(src: Any, index: Any, dim: int, dim_size: int | None, sign: int) -> tuple[Any, Any]:
    """Return the greatest of each group, or with -1 the least, and where it is."""
    spread = _spread(index, src, dim)
    count, length = _groups(spread, dim_size), src.shape[dim]
    values = np.moveaxis(src.asnumpy() * sign, dim, 0).reshape(length, -1)
    places = np.moveaxis(spread.asnumpy(), dim, 0).reshape(length, -1)
    found = np.full((count, values.shape[1]), length, np.int64)
    best = np.full((count, values.shape[1]), -np.inf)
    columns = np.arange(values.shape[1])
    for row in range(length):
        better = values[row] > best[places[row], columns]
        best[places[row][better], columns[better]] = values[row][better]
        found[places[row][better], columns[better]] = row
    rest = [size for axis, size in enumerate(src.shape) if axis != dim % src.ndim]
    arg = np.ascontiguousarray(np.moveaxis(found.reshape(count, *rest), 0, dim))
    known = Tensor(np.minimum(arg, max(length - 1, 0)))
    picked = ops.gather_elements(src, dim % src.ndim, known)
    return ops.where(Tensor(arg < length), picked, ops.zeros_like(picked)), Tensor(arg, ms.int64)


def scatter_max(
    src: Any, index: Any, dim: int = -1, out: Any = None, dim_size: int | None = None
) -> tuple[Any, Any]:
    """Return the greatest of each group, and where it is.

    Raises:
        NotImplementedError: there is an ``out``.
    """
    _check(out)
    return _named(src, index, dim, dim_size, 1)


def scatter_min(
    src: Any, index: Any, dim: int = -1, out: Any = None, dim_size: int | None = None
) -> tuple[Any, Any]:
    """Return the least of each group, and where it is.

    Raises:
        NotImplementedError: there is an ``out``.
    """
    _check(out)
    return _named(src, index, dim, dim_size, -1)


def scatter(
    src: Any,
    index: Any,
    dim: int = -1,
    out: Any = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Any:
    """Return what ``reduce`` makes of each group.

    Raises:
        NotImplementedError: it is none of sum, add, mean, min and max, or there is an ``out``.
    """
    if reduce in ("sum", "add"):
        return scatter_sum(src, index, dim, out, dim_size)
    if reduce == "mean":
        return scatter_mean(src, index, dim, out, dim_size)
    if reduce in ("min", "max"):
        return (scatter_min if reduce == "min" else scatter_max)(src, index, dim, out, dim_size)[0]
    msg = f"`reduce` must be sum, add, mean, min or max, got {reduce!r}"
    raise NotImplementedError(msg)
