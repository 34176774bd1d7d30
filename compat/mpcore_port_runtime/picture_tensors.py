"""Tensors of pictures (..., C, H, W) in other sizes, in parts, with borders, in other colours.

Source: torchvision 0.28.0 ``transforms/_functional_tensor.py``; compared with what it gave.
"""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mpcore_port_runtime.resizing import interpolate

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "bell",
    "blended",
    "bordered",
    "cropped",
    "grey_of",
    "in_the_middle",
    "is_floats",
    "mirrored",
    "padded",
    "pair_of",
    "resized",
    "wanted_size",
    "white",
]

_FLOATS = (ms.float16, ms.float32, ms.float64)


def is_floats(x: Any) -> bool:
    """Return whether a tensor holds floats."""
    return x.dtype in _FLOATS


def pair_of(size: Any) -> tuple[int, int]:
    """Return (height, width)."""
    if isinstance(size, numbers.Number):
        return int(size), int(size)  # type: ignore[call-overload]
    return (size[0], size[0]) if len(size) == 1 else (size[0], size[1])


def wanted_size(high: int, wide: int, size: Any, max_size: int | None) -> tuple[int, int]:
    """Return the height and width that are asked for."""
    if not isinstance(size, int) and len(size) == 2:
        return int(size[0]), int(size[1])
    short = int(size if isinstance(size, int) else size[0])
    long = int(short * max(wide, high) / min(wide, high))
    if max_size is not None and long > max_size:
        short, long = int(max_size * short / long), max_size
    return (long, short) if wide <= high else (short, long)


def resized(img: Any, wanted: tuple[int, int], mode: str, antialias: bool | None) -> Any:
    """Return a tensor (..., H, W) in another size, as torchvision gives it."""
    whole, kept = img.reshape(-1, 1, *img.shape[-2:]), img.dtype
    is_float = is_floats(img)
    made = whole if is_float else whole.astype(ms.float32)
    if mode.startswith("nearest"):
        made = interpolate(made, size=wanted, mode=mode)
    elif antialias and mode in ("bilinear", "bicubic"):
        for axis, out in ((-1, wanted[1]), (-2, wanted[0])):
            made = _smoothed(made, axis, out, mode)
    else:
        made = interpolate(made, size=wanted, mode=mode, align_corners=False)
    if not is_float:
        made = ops.round(made.clip(0, 255) if kept == ms.uint8 else made).astype(kept)
    return made.reshape(*img.shape[:-2], *wanted)


def _smoothed(x: Any, axis: int, out: int, mode: str) -> Any:
    """Return one axis of a tensor in another length; longer steps take more of what was there.

    Source: aten/src/ATen/native/cpu/UpSampleKernel.cpp, torch 2.13.0.
    """
    length = x.shape[axis]
    if length == out:
        return x
    step = length / out
    stretch, reach = max(step, 1.0), 1.0 if mode == "bilinear" else 2.0
    rows = np.zeros((out, length), np.float64)
    for place in range(out):
        middle = step * (place + 0.5)
        first = max(int(middle - reach * stretch + 0.5), 0)
        last = min(int(middle + reach * stretch + 0.5), length)
        far = (np.arange(first, last) - middle + 0.5) / stretch
        weights = _bent(np.abs(far), mode)
        rows[place, first:last] = weights / weights.sum()
    table = Tensor(rows.astype(np.float32)).astype(x.dtype)
    if axis == -1:
        return ops.matmul(x, table.T)
    return ops.matmul(table, x)


def _bent(far: Any, mode: str) -> Any:
    """Return weights by distance: a triangle, or the cubic with -0.5 that PIL has too."""
    if mode == "bilinear":
        return np.clip(1 - far, 0, None)
    a = -0.5
    near = ((a + 2) * far - (a + 3)) * far * far + 1
    away = (((far - 5) * far + 8) * far - 4) * a
    return np.where(far < 1, near, np.where(far < 2, away, 0))


def cropped(x: Any, top: int, left: int, height: int, width: int) -> Any:
    """Return a part, zero where it is outside."""
    high, wide = x.shape[-2:]
    right, bottom = left + width, top + height
    part = x[..., max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    if left >= 0 and top >= 0 and right <= wide and bottom <= high:
        return part
    across = (max(min(right, 0) - left, 0), max(right - max(wide, left), 0))
    down = (max(min(bottom, 0) - top, 0), max(bottom - max(high, top), 0))
    return padded(part, (*across, *down), 0.0)


def in_the_middle(x: Any, size: Any) -> Any:
    """Return the middle, zero where the tensor is too small."""
    height, width = pair_of(size)
    high, wide = x.shape[-2:]
    if width > wide or height > high:
        across, down = max(width - wide, 0), max(height - high, 0)
        x = padded(x, (across // 2, (across + 1) // 2, down // 2, (down + 1) // 2), 0.0)
        high, wide = x.shape[-2:]
    top, left = round((high - height) / 2.0), round((wide - width) / 2.0)
    return cropped(x, top, left, height, width)


def padded(x: Any, sides: Sequence[int], fill: float) -> Any:
    """Return a tensor with a border: left, right, top, bottom."""
    left, right, top, bottom = (int(one) for one in sides)
    shape, kind = tuple(x.shape), x.dtype
    if left or right:
        shaped = [ops.full((*shape[:-1], n), fill, dtype=kind) for n in (left, right) if n]
        parts = [*shaped[: bool(left)], x, *shaped[bool(left) :]]
        x = ops.cat(parts, -1)
    if top or bottom:
        wide = (*shape[:-2],)
        shaped = [ops.full((*wide, n, x.shape[-1]), fill, dtype=kind) for n in (top, bottom) if n]
        x = ops.cat([*shaped[: bool(top)], x, *shaped[bool(top) :]], -2)
    return x


def bordered(x: Any, sides: Sequence[int], fill: Any, mode: str) -> Any:
    """Return a tensor with a border: left, top, right, bottom."""
    left, top, right, bottom = sides
    if mode == "constant":
        return padded(x, (left, right, top, bottom), fill)
    high, wide = x.shape[-2:]
    across, down = _places(wide, left, right, mode), _places(high, top, bottom, mode)
    return x[..., Tensor(down), :][..., Tensor(across)]


def _places(length: int, before: int, after: int, mode: str) -> Any:
    """Return where numbers of a border come from, and those within."""
    numpys = {"edge": "edge", "reflect": "reflect", "symmetric": "symmetric"}[mode]
    return np.pad(np.arange(length), (before, after), mode=numpys).astype(np.int64)  # type: ignore[call-overload]


def mirrored(x: Any, axis: int = -1) -> Any:
    """Return the mirror image; along -2 it is upside down."""
    return ops.flip(x, (x.ndim + axis,))


def white(x: Any) -> float:
    """Return the value of white."""
    return 1.0 if is_floats(x) else 255.0


def blended(one: Any, other: Any, ratio: float) -> Any:
    """Return two tensors mixed, within black and white."""
    mixed = one.astype(ms.float32) * ratio + (1.0 - ratio) * other
    return mixed.clip(0, white(one)).astype(one.dtype)


def grey_of(x: Any, bands: int = 1) -> Any:
    """Return a tensor without colours, in one channel or three equal ones."""
    grey = x
    if x.shape[-3] == 3:
        red, green, blue = (x[..., band, :, :].astype(ms.float32) for band in range(3))
        grey = (0.2989 * red + 0.587 * green + 0.114 * blue).astype(x.dtype).expand_dims(-3)
    return grey if bands == 1 else ops.cat([grey, grey, grey], -3)


def bell(size: int, sigma: float) -> Any:
    """Return a row of weights."""
    half = (size - 1) * 0.5
    values = np.exp(-0.5 * (np.linspace(-half, half, size, dtype=np.float32) / sigma) ** 2)
    return (values / values.sum()).astype(np.float32)
