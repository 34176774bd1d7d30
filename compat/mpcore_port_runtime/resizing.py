"""Sizes of pictures: torch.nn.functional.interpolate, axis by axis.

Each number of an axis is a sum of a few of those that were there; which, and with what weights,
numpy says in float32, as torch computes it.

Source: aten/src/ATen/native/UpSample.h and torch/nn/functional.py, torch 2.13.0.
"""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

__all__ = ["interpolate"]

_SHARP = -0.75
"""How far torch's cubic reaches below zero."""
_LINEAR = ("linear", "bilinear", "trilinear")
_SMOOTHED = ("bilinear", "bicubic")
_COPIED = ("nearest", *_LINEAR)
"""Modes in which torch copies an axis that keeps its length, whatever its factor is."""


def interpolate(
    input: Any,  # torch's name
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """Return torch.nn.functional.interpolate of (N, C, ...) in all its modes."""
    lengths = tuple(input.shape[2:])
    factors: list[Any] = [None] * len(lengths)
    if size is None:
        listed = isinstance(scale_factor, (tuple, list))
        factors = list(scale_factor) if listed else [scale_factor] * len(lengths)
        pairs = zip(lengths, factors, strict=True)
        wanted = tuple(math.floor(length * factor) for length, factor in pairs)
    else:
        sizes = size if isinstance(size, (tuple, list)) else (size,) * len(lengths)
        wanted = tuple(int(one) for one in sizes)  # numpy draws some
    exact = all(f is None or n * f == w for n, f, w in zip(lengths, factors, wanted, strict=True))
    if antialias and (mode not in _SMOOTHED or len(lengths) != 2):
        msg = f"`antialias` must be False in mode {mode!r} and {len(lengths)} axes, as in torch"
        raise ValueError(msg)
    if exact or recompute_scale_factor:
        factors = [None] * len(lengths)
        plain = len(lengths) == 2 and not antialias and input.dtype != ms.float64
        if plain and mode in ("nearest", "bilinear"):
            return _native(input, wanted, mode, align_corners)
    elif not antialias:
        _check_kept(lengths, wanted, mode)
    wide = ms.float64 if input.dtype == ms.float64 else ms.float32
    made = input if mode.startswith("nearest") else input.astype(wide)
    kind = np.float64 if wide == ms.float64 else np.float32
    for axis in reversed(range(len(lengths))):
        length, out = lengths[axis], wanted[axis]
        given = (length, out, factors[axis], mode, bool(align_corners), kind)
        places, weights = _smoothed(*given) if antialias else _taps(*given)
        made = _summed(made, axis + 2, places, weights)
    return made.astype(input.dtype)


def _check_kept(lengths: tuple[int, ...], wanted: tuple[int, ...], mode: str) -> None:
    """Refuse what torch gives by factors, and the gradients of which it takes without them."""
    kept = [length == out for length, out in zip(lengths, wanted, strict=True)]
    volume = mode == "nearest" and len(kept) == 3
    if (mode == "bicubic" and all(kept)) or (volume and any(kept)):
        msg = f"`scale_factor` must change the size in mode {mode!r}; give `size`"
        raise NotImplementedError(msg)


def _native(input: Any, wanted: tuple[int, ...], mode: str, align_corners: bool | None) -> Any:
    if mode == "nearest":
        return ops.interpolate(input, size=wanted, mode=mode)
    return ops.interpolate(input, size=wanted, mode=mode, align_corners=bool(align_corners))


def _summed(value: Any, axis: int, places: Any, weights: Any) -> Any:
    """Return the sum over taps of what stands at their places, times their weights."""
    if weights is None:
        return ops.gather(value, Tensor(places[0]), axis)
    shape = (-1,) + (1,) * (value.ndim - axis - 1)
    total = None
    for place, weight in zip(places, weights, strict=True):
        part = ops.gather(value, Tensor(place), axis) * Tensor(weight.reshape(shape))
        total = part if total is None else total + part
    return total


def _taps(
    length: int, out: int, factor: Any, mode: str, aligned: bool, kind: Any
) -> tuple[Any, Any]:
    """Return places and weights of each tap of an axis; no weights where there is one tap."""
    if mode == "area":
        return _windows(length, out, kind)
    if length == out and mode in _COPIED and not aligned:
        return [np.arange(out, dtype=np.int32)], None
    if mode in ("nearest", "nearest-exact"):  # float32 for every type
        scale = np.float32(length / out if factor is None else 1.0 / factor)
        half = np.float32(0.5 if mode == "nearest-exact" else 0.0)
        at = np.floor((np.arange(out, dtype=np.float32) + half) * scale)
        return [np.minimum(at.astype(np.int32), length - 1)], None
    at = _sources(length, out, factor, aligned, kind)
    if mode in _LINEAR:
        at = np.maximum(at, kind(0.0))
        low = np.minimum(np.floor(at).astype(np.int32), length - 1)
        share = at - low.astype(kind)
        return [low, np.minimum(low + 1, length - 1)], [kind(1.0) - share, share]
    if mode != "bicubic":
        msg = f"`mode` must be one of torch's, got {mode!r}"
        raise NotImplementedError(msg)
    low = np.floor(at).astype(np.int32)
    share = at - low.astype(kind)
    places = [np.clip(low + step, 0, length - 1) for step in (-1, 0, 1, 2)]
    near, one = kind(1.0) - share, kind(1.0)
    weights = [_far(share + one), _near(share), _near(near), _far(near + one)]
    return places, [weight.astype(kind) for weight in weights]


def _sources(length: int, out: int, factor: Any, aligned: bool, kind: Any) -> Any:
    """Return where each number of an axis comes from, between those that were there."""
    at = np.arange(out, dtype=kind)
    if aligned:
        return at * kind((length - 1) / (out - 1) if out > 1 else 0.0)
    scale = kind(length / out if factor is None else 1.0 / factor)
    return scale * (at + kind(0.5)) - kind(0.5)


def _near(x: Any) -> Any:
    """Return the cubic's weight at a distance of up to one."""
    return ((_SHARP + 2) * x - (_SHARP + 3)) * x * x + 1


def _far(x: Any) -> Any:
    """Return the cubic's weight at a distance between one and two."""
    return ((_SHARP * x - 5 * _SHARP) * x + 8 * _SHARP) * x - 4 * _SHARP


def _smoothed(
    length: int, out: int, factor: Any, mode: str, aligned: bool, kind: Any
) -> tuple[Any, Any]:
    """Return the taps of an axis that is antialiased: as wide as what it is shrunk by.

    Source: ``_compute_indices_min_size_weights_aa`` in aten/src/ATen/native/cpu/UpSampleKernel.cpp,
    torch 2.13.0.
    """
    if aligned:
        scale = kind((length - 1) / (out - 1) if out > 1 else 0.0)
    else:
        scale = kind(length / out if factor is None else 1.0 / factor)
    reach = kind(1.0 if mode == "bilinear" else 2.0)
    support, narrow = (reach * scale, 1 / scale) if scale >= 1 else (reach, kind(1.0))
    centre = scale * (np.arange(out, dtype=kind) + kind(0.5))
    first = np.maximum((centre - support + kind(0.5)).astype(np.int64), 0)
    count = np.minimum((centre + support + kind(0.5)).astype(np.int64), length) - first
    steps = np.arange(int(count.max()))[:, None]
    far = np.abs((steps + first - centre + kind(0.5)) * narrow)
    weights = np.where(steps < count, _bump(far) if mode == "bilinear" else _wave(far), 0.0)
    weights = (weights / weights.sum(0)).astype(kind)
    return list(np.minimum(first + steps, length - 1).astype(np.int32)), list(weights)


def _bump(far: Any) -> Any:
    return np.maximum(1 - far, 0)


def _wave(far: Any) -> Any:
    """Return the antialiased cubic's weights, which reaches less far below zero."""
    near = (1.5 * far - 2.5) * far * far + 1
    beyond = ((-0.5 * far + 2.5) * far - 4) * far + 2
    return np.where(far < 1, near, np.where(far < 2, beyond, 0.0))


def _windows(length: int, out: int, kind: Any) -> tuple[Any, Any]:
    """Return the taps of means over windows, as adaptive_avg_pool has them."""
    first = np.arange(out) * length // out
    last = -(-(np.arange(out) + 1) * length // out)  # rounded up
    counts = last - first
    taps = range(int(counts.max()))
    places = [np.minimum(first + step, length - 1).astype(np.int32) for step in taps]
    return places, [((step < counts) / counts).astype(kind) for step in taps]
