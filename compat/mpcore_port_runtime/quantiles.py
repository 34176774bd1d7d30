"""Quantiles: MindSpore has none that was compared with torch's."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

__all__ = ["median", "quantile"]


def median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:  # torch's name
    """Return torch.median: the lower of two middle values; along an axis its place as well."""
    if dim is None:
        values = ops.sort(input.reshape(-1))[0]
        return values[(values.shape[0] - 1) // 2]
    values, places = ops.sort(input, dim)
    middle = (input.shape[dim] - 1) // 2
    found = [part.take(Tensor([middle]), dim) for part in (values, places.astype(ms.int64))]
    return tuple(found if keepdim else [part.squeeze(dim) for part in found])


def quantile(
    input: Any,  # torch's name
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
) -> Any:
    """Return torch.quantile with linear interpolation: (*q.shape, ...) of (..., n, ...).

    Source: ``quantile_compute`` in aten/src/ATen/native/Sorting.cpp, torch 2.13.0.
    """
    whole = dim is None
    rows = input.reshape(-1) if whole else input.swapaxes(dim, -1)
    values = ops.sort(rows, -1)[0]
    several = isinstance(q, Tensor) and q.ndim == 1
    shares = q.reshape(-1) if isinstance(q, Tensor) else Tensor([q], input.dtype)
    places = shares.astype(input.dtype) * (values.shape[-1] - 1)
    below = ops.floor(places)
    low = ops.gather(values, below.astype(ms.int32), -1)
    high = ops.gather(values, ops.ceil(places).astype(ms.int32), -1)
    made = low + (high - low) * (places - below)
    missing = ops.isnan(rows).any(-1).expand_dims(-1)
    made = ops.where(missing, ops.full_like(made, float("nan")), made)
    parts = (
        [_placed(made[..., place : place + 1], input, dim, keepdim) for place in range(len(q))]
        if several
        else [_placed(made, input, dim, keepdim)]
    )
    return ops.stack(parts) if several else parts[0]


def _placed(row: Any, input: Any, dim: int | None, keepdim: bool) -> Any:
    """Return one quantile, (..., 1), in the shape that torch gives it."""
    if dim is None:
        return row.reshape((1,) * input.ndim if keepdim else ())
    back = row.swapaxes(dim, -1)
    return back if keepdim else back.squeeze(dim)
