"""Functions of torch that few scripts call: means without nan, distances, places, splits, types.

Source: aten/src/ATen/native of torch 2.13.0, where a function says nothing else.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops

from mpcore_port_runtime.losses import reduced

__all__ = [
    "aminmax",
    "assert_close",
    "bitwise_not",
    "broadcast_shapes",
    "cartesian_prod",
    "channel_shuffle",
    "corrcoef",
    "cummax",
    "cummin",
    "diff",
    "dist",
    "fmin",
    "heaviside",
    "hinge_embedding_loss",
    "histc",
    "iinfo",
    "index_copy",
    "is_signed",
    "local_response_norm",
    "logspace",
    "masked_scatter",
    "mode",
    "multi_margin_loss",
    "nanmedian",
    "nanquantile",
    "number_range",
    "pairwise_distance",
    "place_of",
    "randint_like",
    "reduction_number",
    "rsub",
    "scalar_tensor",
    "scatter_reduce",
    "slice_scatter",
    "strides_of",
    "take",
    "take_along_dim",
    "tensor_split",
    "threshold",
    "trapezoid",
    "tril_indices",
    "triu_indices",
    "true_or_raise",
]


class Values(NamedTuple):
    """What cummax, cummin, mode and nanmedian return."""

    values: Any
    indices: Any


class Extremes(NamedTuple):
    """What aminmax returns."""

    min: Any
    max: Any


def reduction_number(reduction: str) -> int:
    """Return torch.nn._reduction.get_enum: what torch's kernels take a word for."""
    numbers = {"none": 0, "mean": 1, "elementwise_mean": 1, "sum": 2}
    if reduction not in numbers:
        msg = f"{reduction} is not a valid value for reduction"
        raise ValueError(msg)
    return numbers[reduction]


def aminmax(input: Any, *, dim: int | None = None, keepdim: bool = False) -> Extremes:
    """Return torch.aminmax: gradients are shared among equals, as in torch."""
    axes = tuple(range(input.ndim)) if dim is None else dim
    return Extremes(ops.amin(input, axes, keepdim), ops.amax(input, axes, keepdim))


def _running(input: Any, dim: int, beats: Any) -> Values:
    """Return extremes so far and their places; of equals the last, and nan beats all."""
    rows = np.moveaxis(input.asnumpy(), dim, 0) if input.ndim else input.asnumpy()[None]
    best, place, places = rows[0], np.zeros(rows[0].shape, np.int64), []
    for at, row in enumerate(rows):
        wins = beats(row, best) | np.isnan(row) | (row == best)
        wins &= ~(np.isnan(best) & ~np.isnan(row))
        best, place = np.where(wins, row, best), np.where(wins, at, place)
        places.append(place)
    found = np.stack(places) if input.ndim else places[0]
    index = Tensor(np.ascontiguousarray(np.moveaxis(found, 0, dim) if input.ndim else found))
    values = ops.gather_elements(input, dim, index) if input.ndim else input.copy()
    return Values(values, index)


def cummax(input: Any, dim: int) -> Values:
    """Return torch.cummax: the largest so far and its place."""
    return _running(input, dim, np.greater)


def cummin(input: Any, dim: int) -> Values:
    """Return torch.cummin: the smallest so far and its place."""
    return _running(input, dim, np.less)


def mode(input: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Return torch.mode: the most frequent, of several the smallest, and its last place.

    What is no tensor has a ``mode`` of its own: a distribution's is where it is densest.
    """
    if not isinstance(input, Tensor):
        own: Any = input.mode() if (dim, keepdim) == (-1, False) else input.mode(dim, keepdim)
        return own
    rows = np.moveaxis(input.asnumpy(), dim, -1)
    found = np.empty(rows.shape[:-1], np.int64)
    for place in np.ndindex(*found.shape):
        values, counts = np.unique(rows[place], return_counts=True)
        wanted = values[counts.argmax()]
        found[place] = np.flatnonzero(rows[place] == wanted)[-1]
    index = Tensor(np.expand_dims(found, dim))
    made = ops.gather_elements(input, dim, index)
    return Values(*((made, index) if keepdim else (made.squeeze(dim), index.squeeze(dim))))


def nanmedian(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return torch.nanmedian: the lower of two middle values of those that are numbers."""
    flat = input.reshape(-1) if dim is None else input.swapaxes(dim, -1)
    data = flat.asnumpy()
    order = np.argsort(data, -1, kind="stable")  # nan is last
    count = (~np.isnan(data)).sum(-1, keepdims=True)
    place = np.take_along_axis(order, np.maximum(count - 1, 0) // 2, -1)
    index = Tensor(place.astype(np.int64))
    made = ops.gather_elements(flat, -1, index)
    if dim is None:
        return made.reshape(())
    both = (made.swapaxes(dim, -1), index.swapaxes(dim, -1))
    return Values(*(both if keepdim else (one.squeeze(dim) for one in both)))


def nanquantile(input: Any, q: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return torch.nanquantile of one share, by linear interpolation.

    Raises:
        NotImplementedError: several shares.
    """
    if isinstance(q, Tensor) and q.ndim:
        msg = "`q` must be a number: several quantiles without nan are not ported"
        raise NotImplementedError(msg)
    flat = input.reshape(-1) if dim is None else input.swapaxes(dim, -1)
    data = flat.asnumpy()
    order = np.argsort(data, -1, kind="stable")
    count = (~np.isnan(data)).sum(-1, keepdims=True)
    place = float(q) * np.maximum(count - 1, 0).astype(data.dtype)
    low, high = (
        ops.gather_elements(
            flat, -1, Tensor(np.take_along_axis(order, f(place).astype(np.int64), -1))
        )
        for f in (np.floor, np.ceil)
    )
    made = low + (high - low) * Tensor((place - np.floor(place)).astype(data.dtype))
    if dim is None:
        return made.reshape((1,) * input.ndim if keepdim else ())
    made = made.swapaxes(dim, -1)
    return made if keepdim else made.squeeze(dim)


def corrcoef(input: Any) -> Any:
    """Return torch.corrcoef: rows are variables."""
    rows = input.reshape((1, -1)) if input.ndim < 2 else input
    about = rows - rows.mean(-1, keep_dims=True)
    cover = ops.matmul(about, about.swapaxes(0, 1)) / (rows.shape[1] - 1)
    size = ops.sqrt(cover.diagonal())
    made = cover / size.expand_dims(0) / size.expand_dims(1)
    return made.clamp(-1.0, 1.0) if input.ndim > 1 else made.reshape(())


def diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Return torch.diff: differences of neighbours; of truths whether they differ."""
    parts = [one for one in (prepend, input, append) if one is not None]
    made = ops.cat(parts, dim) if len(parts) > 1 else input
    for _ in range(n):
        size = made.shape[dim] - 1
        after, before = (mint.narrow(made, dim, at, size) for at in (1, 0))
        made = ops.logical_xor(after, before) if made.dtype == ms.bool_ else after - before
    return made


def dist(input: Any, other: Any, p: float = 2) -> Any:
    """Return torch.dist: the p-norm of the difference; p=0 counts, inf takes the largest."""
    apart = ops.abs(input - other)
    if p == math.inf:
        return apart.max()
    if p == -math.inf:
        return apart.min()
    if p == 0:
        return (apart != 0).astype(apart.dtype).sum()
    if p == 1:
        return apart.sum()
    return _root((apart * apart if p == 2 else ops.pow(apart, p)).sum(), p)


def _root(total: Any, p: float) -> Any:
    """Return the p-th root, whose slope at 0 is 0, as torch's norm has it."""
    safe = ops.where(total == 0, ops.ones_like(total), total)
    root = ops.sqrt(safe) if p == 2 else ops.pow(safe, 1.0 / p)
    return ops.where(total == 0, ops.zeros_like(total), root)


def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    """Return torch.nn.functional.pairwise_distance: ``eps`` is added to the differences."""
    apart = ops.abs(x1 - x2 + eps)
    if p == math.inf:
        return ops.amax(apart, -1, keepdim)
    if p == 1:
        return apart.sum(-1, keepdims=keepdim)
    return _root((apart * apart if p == 2 else ops.pow(apart, p)).sum(-1, keepdims=keepdim), p)


def fmin(input: Any, other: Any) -> Any:
    """Return torch.fmin: the smaller, of a number and nan the number."""
    return -ops.fmax(-input, -other)


def heaviside(input: Any, values: Any) -> Any:
    """Return torch.heaviside; it has no gradient in torch."""
    return ops.heaviside(input, values)


def take(input: Any, index: Any) -> Any:
    """Return torch.take: elements by their places in the flat tensor."""
    taken = ops.gather(input.reshape(-1), index.reshape(-1) % input.size, 0)
    return taken.reshape(index.shape)


def take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    """Return torch.take_along_dim: as gather, with both made alike in their other axes."""
    if dim is None:
        return ops.gather_elements(input.reshape(-1), 0, indices.reshape(-1))
    axis = dim % input.ndim
    shapes = [list(one.shape) for one in (input, indices)]
    for shape in shapes:
        shape[axis] = 1
    wide = np.broadcast_shapes(*map(tuple, shapes))
    rows, places = (
        one.broadcast_to((*wide[:axis], one.shape[axis], *wide[axis + 1 :]))
        for one in (input, indices)
    )
    return ops.gather_elements(rows, axis, places)


def tensor_split(input: Any, indices_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """Return torch.tensor_split: by a number of parts, or by places."""
    wanted = indices_or_sections
    if isinstance(wanted, Tensor):
        wanted = wanted.asnumpy().tolist()
    return tuple(
        ops.tensor_split(input, tuple(wanted) if isinstance(wanted, list) else wanted, dim)
    )


def channel_shuffle(input: Any, groups: int) -> Any:
    """Return torch.nn.functional.channel_shuffle."""
    n, channels, *sizes = input.shape
    apart = input.reshape((n, groups, channels // groups, *sizes))
    return apart.swapaxes(1, 2).reshape(input.shape)


def index_copy(input: Any, dim: int, index: Any, source: Any) -> Any:
    """Return torch.index_copy: rows of ``source`` in the places of ``input``'s."""
    axis = dim % input.ndim
    shape = [1] * input.ndim
    shape[axis] = index.shape[0] if index.ndim else 1
    places = index.reshape(tuple(shape)).broadcast_to(tuple(source.shape))
    return ops.tensor_scatter_elements(input, places, source.astype(input.dtype), axis)


def masked_scatter(input: Any, mask: Any, source: Any) -> Any:
    """Return torch.masked_scatter: elements of ``source`` in order where the mask is true."""
    wide = np.broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    held = mask.broadcast_to(wide).asnumpy()
    places = np.maximum(np.cumsum(held.reshape(-1)) - 1, 0).reshape(wide)
    taken = ops.gather(source.reshape(-1), Tensor(places.reshape(-1)), 0).reshape(wide)
    return ops.where(Tensor(held), taken, input.broadcast_to(wide))


_REDUCED = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def scatter_reduce(
    input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Return torch.scatter_reduce for sums and means.

    Raises:
        NotImplementedError: another reduction, which MindSpore has no kernel for on a CPU.
    """
    if reduce not in ("sum", "mean"):
        msg = f"`reduce` must be 'sum' or 'mean', got {reduce!r}"
        raise NotImplementedError(msg)
    part = src[tuple(slice(0, n) for n in index.shape)].astype(input.dtype)
    hit = ops.tensor_scatter_elements(ops.zeros_like(input), index, ops.ones_like(part), dim, "add")
    start = input if include_self else ops.where(hit > 0, ops.zeros_like(input), input)
    made = ops.tensor_scatter_elements(start, index, part, dim, "add")
    if reduce == "sum":
        return made
    count = hit + 1 if include_self else ops.where(hit > 0, hit, ops.ones_like(hit))
    return made / count


def slice_scatter(
    input: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """Return torch.slice_scatter: ``src`` in the place of a part."""
    axis = dim % input.ndim
    places = Tensor(np.arange(input.shape[axis])[slice(start, end, step)].astype(np.int64))
    return index_copy(input, axis, places, src)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """Return torch.broadcast_shapes."""
    return tuple(int(n) for n in np.broadcast_shapes(*shapes))


def number_range(start: Any, end: Any, step: Any = 1, *, dtype: Any = None) -> Any:
    """Return torch.range: ``end`` is in it, and the numbers are float32."""
    count = math.floor((end - start) / step) + 1
    return Tensor(start + step * np.arange(count), ms.float32 if dtype is None else dtype)


def randint_like(input: Any, low: int, high: int | None = None, *, dtype: Any = None) -> Any:
    """Return torch.randint_like: whole numbers in the dtype of ``input``."""
    first, last = (0, low) if high is None else (low, high)
    made = ops.randint(first, last, tuple(input.shape))
    return made.astype(input.dtype if dtype is None else dtype)


def true_or_raise(condition: Any, message: Any = "") -> None:
    """Do what torch._assert does.

    Raises:
        AssertionError: the condition is false.
    """
    if not condition:
        raise AssertionError(message)


def iinfo(dtype: Any) -> Any:
    """Return torch.iinfo of a dtype of whole numbers, which is numpy's."""
    return np.iinfo(ms.dtype_to_nptype(dtype))


def is_signed(input: Any) -> bool:
    """Return torch.is_signed of a tensor."""
    return input.dtype not in (ms.bool_, ms.uint8, ms.uint16, ms.uint32, ms.uint64)


def bitwise_not(input: Any) -> Any:
    """Return torch.bitwise_not: of truths the others, of whole numbers -1 - x."""
    if input.dtype == ms.bool_:
        return ops.logical_not(input)
    return ops.bitwise_xor(input, ops.full_like(input, -1 if is_signed(input) else 255))


def rsub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Return torch.rsub: ``other - alpha * input``."""
    return other - alpha * input


def _triangle(of: Any, row: int, col: int, offset: int, dtype: Any) -> Any:
    places = np.stack(of(row, offset, col)).astype(np.int64)
    return Tensor(places) if dtype is None else Tensor(places).astype(dtype)


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Any:
    """Return torch.tril_indices."""
    return _triangle(np.tril_indices, row, col, offset, dtype)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Any:
    """Return torch.triu_indices."""
    return _triangle(np.triu_indices, row, col, offset, dtype)


def logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None) -> Any:
    """Return torch.logspace."""
    powers = np.power(float(base), np.linspace(float(start), float(end), steps))
    return Tensor(powers, ms.float32 if dtype is None else dtype)


def threshold(input: Any, threshold: float, value: float) -> Any:
    """Return torch.nn.functional.threshold: what is not above it becomes ``value``."""
    return ops.where(input > threshold, input, ops.full_like(input, value))


def local_response_norm(
    input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    """Return torch.nn.functional.local_response_norm: over ``size`` neighbouring channels."""
    squares = input * input
    before, after = size // 2, (size - 1) // 2
    total = squares
    for step in range(1, before + 1):
        total = total + _moved(squares, step)
    for step in range(1, after + 1):
        total = total + _moved(squares, -step)
    return input / ops.pow(total * (alpha / size) + k, beta)


def _moved(x: Any, step: int) -> Any:
    """Return channels moved by some places; zeros come in."""
    channels = x.shape[1]
    if abs(step) >= channels:
        return ops.zeros_like(x)
    room = ops.zeros_like(mint.narrow(x, 1, 0, abs(step)))
    if step > 0:
        return ops.cat([room, mint.narrow(x, 1, 0, channels - step)], 1)
    return ops.cat([mint.narrow(x, 1, -step, channels + step), room], 1)


def trapezoid(y: Any, x: Any = None, *, dx: float = 1.0, dim: int = -1) -> Any:
    """Return torch.trapezoid: the area under points, at ``x`` or ``dx`` apart."""
    size = y.shape[dim] - 1
    both = mint.narrow(y, dim, 1, size) + mint.narrow(y, dim, 0, size)
    if x is None:
        return (both * (dx / 2)).sum(dim)
    if x.ndim == 1:
        shape = [1] * y.ndim
        shape[dim] = -1
        return (both * diff(x).reshape(tuple(shape)) / 2).sum(dim)
    return (both * diff(x, dim=dim) / 2).sum(dim)


def cartesian_prod(*tensors: Any) -> Any:
    """Return torch.cartesian_prod: all rows of one element of each."""
    return ops.cartesian_prod(*tensors) if len(tensors) > 1 else tensors[0]


def hinge_embedding_loss(
    input: Any, target: Any, margin: float = 1.0, reduction: str = "mean"
) -> Any:
    """Return torch.nn.functional.hinge_embedding_loss of targets 1 and -1."""
    zeros = ops.zeros_like(input)
    far = ops.where(target == 1, zeros, ops.relu(margin - input))
    near = ops.where(target == -1, zeros, input)
    return reduced(far + near, reduction)


def multi_margin_loss(
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    reduction: str = "mean",
) -> Any:
    """Return torch.nn.functional.multi_margin_loss."""
    rows = input if input.ndim > 1 else input.expand_dims(0)
    places = target.reshape((-1, 1))
    own = ops.gather_elements(rows, 1, places)
    loss = ops.relu(margin - own + rows)
    loss = loss * loss if p == 2 else loss
    loss = loss if weight is None else loss * ops.gather(weight, places, 0)
    others = ops.arange(rows.shape[1]).expand_dims(0) != places
    loss = (loss * others.astype(loss.dtype)).sum(1) / rows.shape[1]
    return reduced(loss if input.ndim > 1 else loss[0], reduction)


def scalar_tensor(s: Any, *, dtype: Any = None) -> Any:
    """Return torch.scalar_tensor: float32 of any number."""
    return Tensor(s, ms.float32 if dtype is None else dtype)


def place_of(input: Any) -> Any:
    """Return Tensor.get_device of a tensor: 0, the device of the process; else what it says."""
    return 0 if isinstance(input, Tensor) else input.get_device()


def strides_of(input: Any, dim: int | None = None) -> Any:
    """Return Tensor.stride: of all axes, or of one; of no tensor what its own method says."""
    if not isinstance(input, Tensor):
        return input.stride() if dim is None else input.stride(dim)
    found = tuple(input.stride())
    return found if dim is None else found[dim]


_CLOSE = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
}


def assert_close(
    actual: Any,
    expected: Any,
    *args: Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_dtype: bool = True,
    **_: Any,
) -> None:
    """Do what torch.testing.assert_close does, of tensors, numbers, and rows of them.

    Source: ``default_tolerances`` in torch/testing/_comparison.py, torch 2.13.0.

    Raises:
        AssertionError: they differ by more than both shares allow, in shape or in dtype.
    """
    if args:
        rtol, atol = (*args, atol)[:2]
    if isinstance(actual, tuple | list):
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other, rtol=rtol, atol=atol, equal_nan=equal_nan)
        return
    kinds = [str(one.dtype).lower() for one in (actual, expected) if isinstance(one, Tensor)]
    if check_dtype and len(set(kinds)) > 1:
        msg = f"The values for attribute 'dtype' do not match: {kinds[0]} != {kinds[1]}."
        raise AssertionError(msg)
    usual = [_CLOSE.get(kind, (0.0, 0.0)) for kind in kinds] or [_CLOSE["float64"]]
    shares = (max(one) for one in zip(*usual, strict=True))
    share, least = (
        usual if given is None else given for given, usual in zip((rtol, atol), shares, strict=True)
    )
    one, other = (
        x.astype(ms.float64).asnumpy() if isinstance(x, Tensor) else np.asarray(x)
        for x in (actual, expected)
    )
    if one.shape != other.shape:
        msg = f"The values for attribute 'shape' do not match: {one.shape} != {other.shape}."
        raise AssertionError(msg)
    np.testing.assert_allclose(one, other, rtol=share, atol=least, equal_nan=equal_nan)


def histc(input: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Return how many values lie in each of equal bins, in the dtype of the values.

    Whole numbers are counted as torch counts them on a GPU; MindSpore's own takes no int64.
    """
    if input.dtype in (ms.float32, ms.float16):
        return ops.histc(input, bins, min, max)
    return ops.histc(input.astype(ms.float32), bins, min, max).astype(input.dtype)
