"""Elements by place: scattered sums, windows, the k-th of a row, places that are not zero."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops

__all__ = [
    "as_strided",
    "bucketize",
    "index_put",
    "kthvalue",
    "new_tensor",
    "nonzero",
    "rot90",
    "scatter_add",
    "select",
    "unflatten",
    "windows",
]


def scatter_add(input: Any, dim: int, index: Any, src: Any) -> Any:  # torch's name
    """Return torch.scatter_add: ``src`` added at places along ``dim``, as far as ``index`` goes."""
    part = src[tuple(slice(0, n) for n in index.shape)]
    return ops.tensor_scatter_elements(input, index, part.astype(input.dtype), dim, "add")


def rot90(input: Any, k: int = 1, dims: Any = (0, 1)) -> Any:
    """Return torch.rot90: turned by quarters in the plane of two axes."""
    first, second = dims
    turns = k % 4
    if turns in (1, 3):
        return mint.flip(input, (second if turns == 1 else first,)).swapaxes(first, second)
    return mint.flip(input, (first, second)) if turns else input.copy()


def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """Return torch.bucketize: the number of boundaries below each value, by ``right`` not above."""
    values = input.expand_dims(-1) if isinstance(input, Tensor) else input
    below = boundaries <= values if right else boundaries < values
    return below.astype(ms.int32).sum(-1).astype(ms.int32 if out_int32 else ms.int64)


def kthvalue(input: Any, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """Return torch.kthvalue: the k-th smallest along ``dim``, and its place."""
    values, places = ops.sort(input, dim)
    return tuple(_one(part, dim, k - 1, keepdim) for part in (values, places.long()))


def _one(rows: Any, dim: int, place: int, keepdim: bool) -> Any:
    found = select(rows, dim, place)
    return found.expand_dims(dim) if keepdim and rows.ndim else found


def select(input: Any, dim: int, index: int) -> Any:  # torch's names
    """Return torch.select: one slice along ``dim``."""
    axis = dim % input.ndim
    return input[(slice(None),) * axis + (index,)]


def windows(input: Any, dimension: int, size: int, step: int) -> Any:  # torch's names
    """Return Tensor.unfold: windows along a dimension, their elements in a last one."""
    axis = dimension % input.ndim
    count = (input.shape[axis] - size) // step + 1
    places = (np.arange(count)[:, None] * step + np.arange(size)).reshape(-1)
    taken = ops.gather(input, Tensor(places), axis)
    shape = (*input.shape[:axis], count, size, *input.shape[axis + 1 :])
    return ops.movedim(taken.reshape(shape), axis + 1, -1)


def unflatten(input: Any, dim: int, sizes: Any) -> Any:  # torch's names
    """Return torch.unflatten: one dimension in several; one of them may be -1."""
    axis = dim % input.ndim
    return input.reshape((*input.shape[:axis], *sizes, *input.shape[axis + 1 :]))


def index_put(input: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """Return torch.index_put: another tensor with values at places, or added to what is there."""
    made, places = input.copy(), tuple(indices)
    if not accumulate:
        made[places] = values
        return made
    order = Tensor(np.arange(input.size).reshape(input.shape))[places]
    each = ops.broadcast_to(values.astype(input.dtype), order.shape).reshape(-1)
    flat = ops.index_add(made.reshape(-1), order.reshape(-1).astype(ms.int32), each, 0)
    return flat.reshape(input.shape)


def as_strided(input: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """Return torch.as_strided of a tensor whose elements lie in their order, as a copy."""
    place = np.full((1,) * len(size), storage_offset or 0)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        along = np.arange(count) * step
        place = place + along.reshape((-1,) + (1,) * (len(size) - axis - 1))
    return ops.gather(input.reshape(-1), Tensor(place.astype(np.int32)), 0)


def nonzero(input: Any, as_tuple: bool = False) -> Any:  # torch's names
    """Return torch.nonzero: rows of places, or a tuple with the places of each dimension."""
    found = input.nonzero()
    return tuple(found[:, place] for place in range(found.shape[1])) if as_tuple else found


def new_tensor(value: Any, data: Any, dtype: Any = None) -> Any:
    """Return Tensor.new_tensor: ``data`` as a tensor of the dtype of ``value``."""
    given = data.asnumpy() if isinstance(data, Tensor) else data
    return Tensor(np.array(given), value.dtype if dtype is None else dtype)
