"""torch_scatter by torch's own operations, where its kernels for CPU and CUDA are not there.

Groups are sums of ``Tensor.scatter_add_`` and ends of ``Tensor.scatter_reduce``, which run where
torch does. Values, places and gradients were compared with torch_scatter 2.1.2 on a CPU. An empty
group holds 0, and of equal values the first one is the greatest and the least.

Source: torch_scatter 2.1.2, ``torch_scatter/scatter.py``, ``segment_coo.py``, ``segment_csr.py``,
``composite/``, ``utils.py`` and ``csrc/cpu/reducer.h``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = [
    "gather_coo",
    "gather_csr",
    "scatter",
    "scatter_add",
    "scatter_log_softmax",
    "scatter_logsumexp",
    "scatter_max",
    "scatter_mean",
    "scatter_min",
    "scatter_mul",
    "scatter_softmax",
    "scatter_std",
    "scatter_sum",
    "segment_add_coo",
    "segment_add_csr",
    "segment_coo",
    "segment_csr",
    "segment_max_coo",
    "segment_max_csr",
    "segment_mean_coo",
    "segment_mean_csr",
    "segment_min_coo",
    "segment_min_csr",
    "segment_sum_coo",
    "segment_sum_csr",
]


def _spread(index: Tensor, other: Tensor, dim: int) -> Tensor:
    """Return an index of the shape of ``other``, whose axis ``dim`` it is of."""
    place = dim + other.dim() if dim < 0 else dim
    if index.dim() == 1:
        index = index.view((1,) * place + tuple(index.shape))
    index = index.view(tuple(index.shape) + (1,) * (other.dim() - index.dim()))
    return index.expand(other.shape)


def _room(src: Tensor, index: Tensor, dim: int, dim_size: int | None) -> list[int]:
    size = list(src.shape)
    if dim_size is not None:
        size[dim] = int(dim_size)
    else:
        size[dim] = int(index.max()) + 1 if index.numel() else 0
    return size


def _leave_out(out: Tensor | None, what: str) -> None:
    if out is not None:
        msg = f"`out` must be left out: {what} are given anew"
        raise NotImplementedError(msg)


def scatter_sum(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Return the sum of each group along ``dim``, added to ``out`` where it is given."""
    index = _spread(index, src, dim)
    if out is None:
        out = src.new_zeros(_room(src, index, dim, dim_size))
    return out.scatter_add_(dim, index, src)


scatter_add = scatter_sum


def scatter_mul(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Return the product of each group along ``dim``, 1 of an empty one."""
    index = _spread(index, src, dim)
    if out is None:
        out = src.new_ones(_room(src, index, dim, dim_size))
    return _Product.apply(src, index, dim, out)


class _Product(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """Products, with torch_scatter's gradient: a value of 0 has none."""

    @staticmethod
    def forward(ctx: Any, src: Tensor, index: Tensor, dim: int, out: Tensor) -> Tensor:
        """Multiply."""
        made = out.scatter_reduce(dim, index, src, "prod")
        ctx.save_for_backward(src, index, made)
        ctx.dim = dim
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Divide what a group gives by each of its values."""
        src, index, made = ctx.saved_tensors
        back = (grad * made).gather(ctx.dim, index) / src
        return back.masked_fill(back.isnan(), 0), None, None, None


def scatter_mean(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Return the mean of each group along ``dim``; of whole numbers its floor."""
    total = scatter_sum(src, index, dim, out, dim_size)
    place = dim + src.dim() if dim < 0 else dim
    ones = torch.ones(index.shape, dtype=src.dtype, device=src.device)
    count = scatter_sum(ones, index, min(place, index.dim() - 1), None, total.size(dim))
    count = _spread(count.clamp(min=1), total, dim)
    if out is None:
        return total / count if total.is_floating_point() else total // count
    rounding = None if total.is_floating_point() else "floor"
    return total.div_(count, rounding_mode=rounding)


def _ends(
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, name: str
) -> tuple[Tensor, Tensor]:
    """Return the greatest (``amax``) or least of each group, and where it is along ``dim``."""
    _leave_out(out, "the ends of groups")
    index = _spread(index, src, dim)
    size, length = _room(src, index, dim, dim_size), src.size(dim)
    kind = torch.finfo(src.dtype) if src.is_floating_point() else torch.iinfo(src.dtype)
    start = kind.min if name == "amax" else kind.max
    with torch.no_grad():
        beats = src > start if name == "amax" else src < start
        values = src.masked_fill(~beats, start)
        best = src.new_full(size, start).scatter_reduce(dim, index, values, name)
        axes = [-1 if axis == dim % src.dim() else 1 for axis in range(src.dim())]
        rows = torch.arange(length, device=src.device).view(axes).expand(src.shape)
        rows = torch.where(beats & (best.gather(dim, index) == src), rows, length)
        first = torch.full(size, length, device=src.device)
        first = first.scatter_reduce(dim, index, rows, "amin")
    if length == 0:
        return src.new_zeros(size), first
    picked = src.gather(dim, first.clamp(max=length - 1))
    return picked.masked_fill(first == length, 0), first


def scatter_max(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the greatest of each group along ``dim``, and where it is.

    Raises:
        NotImplementedError: there is an ``out``.
    """
    return _ends(src, index, dim, out, dim_size, "amax")


def scatter_min(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the least of each group along ``dim``, and where it is.

    Raises:
        NotImplementedError: there is an ``out``.
    """
    return _ends(src, index, dim, out, dim_size, "amin")


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Return what ``reduce`` makes of each group along ``dim``.

    Raises:
        ValueError: it is none of sum, add, mul, mean, min and max.
    """
    if reduce in ("min", "max"):
        return (scatter_min if reduce == "min" else scatter_max)(src, index, dim, out, dim_size)[0]
    made = {"sum": scatter_sum, "add": scatter_sum, "mul": scatter_mul, "mean": scatter_mean}
    if reduce not in made:
        msg = f"`reduce` must be sum, add, mul, mean, min or max, got {reduce!r}"
        raise ValueError(msg)
    return made[reduce](src, index, dim, out, dim_size)


def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,  # torch_scatter's signature
) -> Tensor:
    """Return the standard deviation of each group along ``dim``.

    Raises:
        NotImplementedError: there is an ``out``.
    """
    _leave_out(out, "deviations")
    place = dim + src.dim() if dim < 0 else dim
    ones = torch.ones(index.shape, dtype=src.dtype, device=src.device)
    count = scatter_sum(ones, index, min(place, index.dim() - 1), None, dim_size)
    index = _spread(index, src, dim)
    total = scatter_sum(src, index, dim, None, dim_size)
    count = _spread(count, total, dim).clamp(min=1)
    apart = src - (total / count).gather(dim, index)
    total = scatter_sum(apart * apart, index, dim, None, dim_size)
    if unbiased:
        count = (count - 1).clamp(min=1)
    return (total / (count + 1e-6)).sqrt()


def scatter_softmax(
    src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None
) -> Tensor:
    """Return the softmax over each group along ``dim``, in the shape of ``src``.

    Raises:
        ValueError: ``src`` is of whole numbers.
    """
    powers, index = _powers(src, index, dim, dim_size)
    return powers / scatter_sum(powers, index, dim, None, dim_size).gather(dim, index)


def scatter_log_softmax(
    src: Tensor, index: Tensor, dim: int = -1, eps: float = 1e-12, dim_size: int | None = None
) -> Tensor:
    """Return the logarithm of the softmax over each group along ``dim``.

    Raises:
        ValueError: ``src`` is of whole numbers.
    """
    powers, index = _powers(src, index, dim, dim_size)
    total = scatter_sum(powers, index, dim, None, dim_size)
    most = scatter_max(src, index, dim, None, dim_size)[0]
    return src - most.gather(dim, index) - (total + eps).log().gather(dim, index)


def scatter_logsumexp(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """Return the logarithm of each group's sum of exponentials, 0 of an empty one.

    Raises:
        NotImplementedError: there is an ``out``.
        ValueError: ``src`` is of whole numbers.
    """
    _leave_out(out, "logarithms")
    powers, index = _powers(src, index, dim, dim_size)
    total = scatter_sum(powers, index, dim, None, dim_size)
    most, where = scatter_max(src, index, dim, None, dim_size)
    return ((total + eps).log() + most).masked_fill(where == src.size(dim), 0)


def _powers(src: Tensor, index: Tensor, dim: int, dim_size: int | None) -> tuple[Tensor, Tensor]:
    """Return exponentials below each group's greatest, and the index as large as they are."""
    if not src.is_floating_point():
        msg = f"`src` must be of floating point numbers, got {src.dtype}"
        raise ValueError(msg)
    index = _spread(index, src, dim)
    most = scatter_max(src, index, dim, None, dim_size)[0]
    return (src - most.gather(dim, index)).exp(), index


def segment_coo(
    src: Tensor,
    index: Tensor,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Return what ``reduce`` makes of each group along the last axis of a sorted ``index``.

    Raises:
        ValueError: ``reduce`` is none of sum, add, mean, min and max.
    """
    dim, wide = _sorted(src, index)
    return scatter(src, wide, dim, out, dim_size, _known(reduce))


def _sorted(src: Tensor, index: Tensor) -> tuple[int, Tensor]:
    """Return the axis of a sorted index, and the index as large as the values are."""
    index = index.expand(src.shape[: index.dim()])
    wide = index.view(tuple(index.shape) + (1,) * (src.dim() - index.dim()))
    return index.dim() - 1, wide.expand(src.shape)


def _known(reduce: str) -> str:
    if reduce not in ("sum", "add", "mean", "min", "max"):
        msg = f"`reduce` must be sum, add, mean, min or max, got {reduce!r}"
        raise ValueError(msg)
    return reduce


def segment_sum_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Return sums by a sorted index."""
    return segment_coo(src, index, out, dim_size, "sum")


segment_add_coo = segment_sum_coo


def segment_mean_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Return means by a sorted index."""
    return segment_coo(src, index, out, dim_size, "mean")


def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the greatest values by a sorted index, and where they are.

    Raises:
        NotImplementedError: there is an ``out``.
    """
    dim, wide = _sorted(src, index)
    return scatter_max(src, wide, dim, out, dim_size)


def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the least values by a sorted index, and where they are.

    Raises:
        NotImplementedError: there is an ``out``.
    """
    dim, wide = _sorted(src, index)
    return scatter_min(src, wide, dim, out, dim_size)


def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the value of each group at its places, by a sorted index.

    Raises:
        NotImplementedError: there is an ``out``.
    """
    _leave_out(out, "values")
    dim = index.dim() - 1
    wide = index.view(tuple(index.shape) + (1,) * (src.dim() - index.dim()))
    return src.gather(dim, wide.expand(tuple(index.shape) + tuple(src.shape[dim + 1 :])))


def _by_ends(indptr: Tensor) -> tuple[Tensor, int, int]:
    """Return the group of each place that one row of ends is of, its first place, and their number.

    Raises:
        NotImplementedError: there are several rows of ends.
    """
    if indptr.numel() != indptr.size(-1):
        msg = f"`indptr` must be one row of ends, got shape {tuple(indptr.shape)}"
        raise NotImplementedError(msg)
    ends = indptr.reshape(-1)
    groups = ends.numel() - 1
    index = torch.repeat_interleave(torch.arange(groups, device=ends.device), ends.diff())
    return index, int(ends[0]), groups


def segment_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum"
) -> Tensor:
    """Return what ``reduce`` makes of the values between one of ``indptr`` and the next.

    Raises:
        NotImplementedError: there are several rows of ends, or an ``out``.
        ValueError: ``reduce`` is none of sum, add, mean, min and max.
    """
    _leave_out(out, "values")
    part, index, dim, groups = _between(src, indptr)
    return scatter(part, index, dim, None, groups, _known(reduce))


def _between(src: Tensor, indptr: Tensor) -> tuple[Tensor, Tensor, int, int]:
    index, first, groups = _by_ends(indptr)
    dim = indptr.dim() - 1
    return src.narrow(dim, first, index.numel()), index, dim, groups


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Return sums by ends of groups."""
    return segment_csr(src, indptr, out, "sum")


segment_add_csr = segment_sum_csr


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Return means by ends of groups."""
    return segment_csr(src, indptr, out, "mean")


def segment_max_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the greatest values by ends of groups, and where they are.

    Raises:
        NotImplementedError: there are several rows of ends, or an ``out``.
    """
    part, index, dim, groups = _between(src, indptr)
    return _placed(scatter_max(part, index, dim, out, groups), src, indptr, dim)


def segment_min_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the least values by ends of groups, and where they are.

    Raises:
        NotImplementedError: there are several rows of ends, or an ``out``.
    """
    part, index, dim, groups = _between(src, indptr)
    return _placed(scatter_min(part, index, dim, out, groups), src, indptr, dim)


def _placed(
    made: tuple[Tensor, Tensor], src: Tensor, indptr: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Return places as of all values: those of empty groups are their number."""
    values, where = made
    first, last = int(indptr.reshape(-1)[0]), int(indptr.reshape(-1)[-1])
    return values, torch.where(where == last - first, src.size(dim), where + first)


def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the value of each group at its places, by ends of groups.

    Raises:
        NotImplementedError: there are several rows of ends, or an ``out``.
    """
    _leave_out(out, "values")
    index, _, _ = _by_ends(indptr)
    return src.index_select(indptr.dim() - 1, index)
