"""Reductions of torch that MindSpore has in part only; torch's signatures."""

from __future__ import annotations

import inspect
import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

__all__ = [
    "any_true",
    "argmax",
    "argmin",
    "average",
    "cumsum",
    "joined",
    "linalg_norm",
    "norm",
    "split",
    "stacked",
    "total",
    "unbind",
    "vector_norm",
]


def total(input: Any) -> Any:
    """Return the sum of all elements; 0 of none, which MindSpore 2.10 does not give on a CPU."""
    if not isinstance(input, ms.Tensor) or input.size:
        return input.sum()
    whole = not input.is_floating_point()
    return ops.zeros((), ms.int64 if whole else input.dtype)


def average(input: Any) -> Any:
    """Return the mean of all elements; nan of none, which MindSpore 2.10 does not give on a CPU."""
    if not isinstance(input, ms.Tensor) or input.size:
        return input.mean()
    return ops.full((), math.nan, dtype=input.dtype)


def any_true(input: Any) -> Any:
    """Return whether any element is true; False of none, which MindSpore 2.10 does not give."""
    if not isinstance(input, ms.Tensor) or input.size:
        return input.any()
    return ms.Tensor(False)


_FLOATS = (ms.float16, ms.bfloat16, ms.float32, ms.float64)
_WHOLE = (ms.bool_, ms.uint8, ms.int8, ms.int16, ms.int32, ms.int64)


def joined(tensors: Any, dim: int = 0, axis: int | None = None) -> Any:
    """Return torch.cat of tensors of which some are ``torch.tensor([])``, which have any rank.

    Their dtype counts as those of the others do.

    Source: ``cat`` in torch/_refs/__init__.py, torch 2.13.0 (``Legacy behavior``).
    """
    every = list(tensors)
    kept = [one for one in every if tuple(one.shape) != (0,)]
    dtype = _widest(every)
    if not kept:
        return every[0].astype(dtype)
    return mint.cat([one.astype(dtype) for one in kept], dim if axis is None else axis)


def stacked(tensors: Any, dim: int = 0, axis: int | None = None) -> Any:
    """Return torch.stack of tensors of several dtypes: the widest one counts.

    Source: ``stack`` in torch/_refs/__init__.py, torch 2.13.0.
    """
    every = list(tensors)
    dtype = _widest(every)
    return ops.stack([one.astype(dtype) for one in every], dim if axis is None else axis)


def widened(tensors: Any) -> list[Any]:
    """Return tensors in the widest of their dtypes."""
    every = list(tensors)
    dtype = _widest(every)
    return [one.astype(dtype) for one in every]


def _widest(every: Any) -> Any:
    dtypes = {one.dtype for one in every}
    floats = [dtype for dtype in _FLOATS if dtype in dtypes]
    if len(floats) == 2 and floats[1] is ms.bfloat16:
        floats = [ms.float32]
    if not floats and {ms.uint8, ms.int8} <= dtypes:
        dtypes.add(ms.int16)
    return (floats or [dtype for dtype in _WHOLE if dtype in dtypes] or [every[0].dtype])[-1]


def _place(find: Any, input: Any, dim: Any, keepdim: bool) -> Any:
    if dim is None:
        found = find(input.reshape(-1), 0).astype(ms.int64)
        return found.reshape((1,) * input.ndim) if keepdim else found
    found = find(input, dim).astype(ms.int64)
    return found.expand_dims(dim) if keepdim else found


def argmax(input: Any, dim: Any = None, keepdim: bool = False) -> Any:  # torch's names
    """Return the places of the largest, int64; of all elements where ``dim`` is None."""
    return _place(lambda x, axis: ops.argmax(x, axis), input, dim, keepdim)


def argmin(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the places of the smallest, int64; of all elements where ``dim`` is None.

    Of an array it is numpy's: no rule saw what the method was called on.
    """
    if isinstance(input, np.ndarray):
        return input.argmin(dim, keepdims=keepdim)
    return _place(lambda x, axis: ops.argmin(x, axis), input, dim, keepdim)


def cumsum(input: Any, dim: int, dtype: Any = None) -> Any:
    """Return torch.cumsum: sums of bools and whole numbers are int64, as in torch.

    Of an array it is numpy's: no rule saw what the method was called on.
    """
    if isinstance(input, np.ndarray):
        return input.cumsum(axis=dim, dtype=dtype)
    whole = dtype is None and isinstance(input, ms.Tensor) and not input.is_floating_point()
    kept = input if not whole or input.is_complex() else input.astype(ms.int64)
    if dtype is not None and kept.dtype == ms.bool_:
        kept = kept.astype(dtype)
    return ops.cumsum(kept, dim, dtype)


def vector_norm(
    x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Return torch.linalg.vector_norm: over all of the axes ``dim`` at once."""
    return norm(x, ord, dim, keepdim, dtype=dtype)


def linalg_norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Any:  # noqa: N803  # torch's name
    """Return torch.linalg.norm: of vectors as ``norm``, of matrices as MindSpore has it."""
    if ord is None or (not isinstance(ord, str) and (isinstance(dim, int) or A.ndim == 1)):
        return norm(A, 2 if ord is None else ord, dim, keepdim)
    return ops.norm(A, ord, dim, keepdim)


def norm(
    input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Return torch.norm: of vectors, over all of the axes ``dim`` at once.

    Of what is no tensor it is what its own ``norm`` gives: ``self.encoder.norm(x)``.
    """
    if not isinstance(input, ms.Tensor) and callable(getattr(input, "norm", None)):
        return _own_norm(input.norm, p, {"dim": dim, "keepdim": keepdim, "dtype": dtype})
    power = 2.0 if p in (None, "fro") else p
    if isinstance(power, str):
        msg = f"`p` must be 'fro' or a number, got {p!r}"
        raise NotImplementedError(msg)
    x = input if dtype is None else input.astype(dtype)
    axes = tuple(range(x.ndim)) if dim is None else dim if isinstance(dim, tuple | list) else (dim,)
    axes = tuple(axes)
    size = ops.abs(x)
    if power in (math.inf, -math.inf):
        pick = ops.amax if power > 0 else ops.amin
        return pick(size, axes, keepdim) if axes else size
    if power == 0:
        return (x != 0).astype(x.dtype).sum(axes, keepdims=keepdim)
    if power == 1:
        return size.sum(axes, keepdims=keepdim)
    total = (x * x if power == 2 else ops.pow(size, power)).sum(axes, keepdims=keepdim)
    zero = total == 0  # there the gradient is 0 in torch, not the root's
    safe = ops.where(zero, ops.ones_like(total), total)
    root = ops.sqrt(safe) if power == 2 else ops.pow(safe, 1 / power)
    return ops.where(zero, ops.zeros_like(root), root)


def _own_norm(own: Any, p: Any, given: dict[str, Any]) -> Any:
    """Call the ``norm`` of an object of the script's own, or a part of a network, as it was.

    What is as torch has it anyway was not given. What its ``norm`` does not name came by place.
    """
    told = {name: one for name, one in given.items() if one is not None and one is not False}
    args = [] if isinstance(p, str) and p == "fro" and not told else [p]
    known = () if isinstance(own, nn.Cell) else inspect.signature(own).parameters
    named = {name: one for name, one in told.items() if name in known}
    return own(*args, *(one for name, one in told.items() if name not in named), **named)


def split(tensor: Any, split_size_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """Return the parts along ``dim``."""
    given = split_size_or_sections
    each = [int(one) for one in given] if isinstance(given, (list, tuple)) else int(given)
    return tuple(ops.split(tensor, each, dim))


def unbind(input: Any, dim: int = 0) -> Any:
    """Return the slices along ``dim``, without it."""
    return tuple(ops.squeeze(part, dim) for part in ops.split(input, 1, dim))
