"""Pools over rows and volumes, and patches of pictures, by torch's arguments.

Sources: torch/nn/modules/pooling.py and fold.py, aten/src/ATen/native/AdaptiveAveragePooling.cpp,
torch 2.13.0. What MindSpore 2.10.0 has runs them, with torch's defaults: the stride is the kernel.
It takes no sizes that do not divide a row's length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from mpcore_port_runtime.refusal import only

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool3d",
    "AvgPool2d",
    "AvgPool3d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool2d",
    "Unfold",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool3d",
    "max_unpool2d",
]


def _each(value: Any, count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value) * (count // len(value))


def _volumes(pool: Any, input: Any) -> Any:
    """Return what a pool makes of (N, C, D, H, W), or of (C, D, H, W)."""
    if input.ndim == 5:
        return pool(input)
    return pool(input.expand_dims(0)).squeeze(0)


def max_pool3d(
    input: Any,  # torch's name, here and below
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return torch.nn.functional.max_pool3d."""
    step = stride or kernel_size
    only("return_indices", return_indices, False)
    sizes = tuple(_each(one, 3) for one in (kernel_size, step, padding, dilation))  # or lists
    return _volumes(lambda x: ops.max_pool3d(x, *sizes, ceil_mode), input)


def avg_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return torch.nn.functional.avg_pool3d."""
    step = _each(stride or kernel_size, 3)
    sides = tuple(side for side in _each(padding, 3) for _ in range(2))
    settings = (_each(kernel_size, 3), step, sides, ceil_mode, count_include_pad)
    only("divisor_override", divisor_override, None)
    return _volumes(lambda x: ops.avg_pool3d(x, *settings), input)


def adaptive_avg_pool1d(input: Any, output_size: Any) -> Any:
    """Return torch.nn.functional.adaptive_avg_pool1d."""
    size = output_size if isinstance(output_size, int) else int(next(iter(output_size)))
    length = int(input.shape[-1])
    if size == 1:
        return input.mean(-1, True)
    starts = [place * length // size for place in range(size)]
    stops = [-(-(place + 1) * length // size) for place in range(size)]
    if length % size == 0:
        return input.reshape((*input.shape[:-1], size, length // size)).mean(-1)
    parts = [input[..., one:stop].mean(-1) for one, stop in zip(starts, stops, strict=True)]
    return ops.stack(parts, -1)


def adaptive_avg_pool3d(input: Any, output_size: Any) -> Any:
    """Return torch.nn.functional.adaptive_avg_pool3d."""
    size = output_size if isinstance(output_size, int) else tuple(output_size)
    return ops.adaptive_avg_pool3d(input, size)


def avg_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """Return torch.nn.functional.avg_pool1d."""
    kernel, step, side = (_each(one, 1)[0] for one in (kernel_size, stride or kernel_size, padding))
    return ops.avg_pool1d(input, kernel, step, side, ceil_mode, count_include_pad)


def avg_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return torch.nn.functional.avg_pool2d: windows may reach over the edge.

    Source: aten/src/ATen/native/Pool.h and cpu/AvgPoolKernel.cpp, torch 2.13.0.
    """
    if input.ndim == 3:
        settings = (stride, padding, ceil_mode, count_include_pad, divisor_override)
        return avg_pool2d(input.expand_dims(0), kernel_size, *settings).squeeze(0)
    kernel, steps = _each(kernel_size, 2), _each(stride or kernel_size, 2)
    lengths, borders = input.shape[2:], _each(padding, 2)
    axes = [
        _windows(lengths[axis], kernel[axis], steps[axis], borders[axis], ceil_mode)
        for axis in range(2)
    ]
    sides = [side for (before, after, *_) in reversed(axes) for side in (before, after)]
    x = ops.pad(input, sides) if any(sides) else input
    sums = ops.avg_pool2d(x, kernel, steps) * (kernel[0] * kernel[1])
    counts = np.multiply.outer(*(one[2 if count_include_pad else 3] for one in axes))
    return sums / (divisor_override or Tensor(counts.astype(np.float32)).astype(input.dtype))


def _windows(length: int, kernel: int, step: int, side: int, ceil: bool) -> tuple[Any, ...]:
    """Return what stands before and behind an axis, and how many numbers each window has.

    Those with the border, and those without it.
    """
    count = (length + 2 * side - kernel + (step - 1) * bool(ceil)) // step + 1
    if ceil and (count - 1) * step >= length + side:
        count -= 1
    first = np.arange(count) * step - side
    last = np.minimum(first + kernel, length + side)
    inside = np.minimum(last, length) - np.maximum(first, 0)
    behind = max((count - 1) * step + kernel - side - length, 0)
    return side, behind, last - first, inside


class AvgPool2d(nn.AvgPool2d):  # type: ignore[misc]
    """torch.nn.AvgPool2d, where windows may reach over the edge."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, kernel_size if stride is None else stride)
        self.kernel_size, self.stride, self.padding = kernel_size, stride or kernel_size, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    def construct(self, x: Any) -> Any:
        """Return the mean of each window."""
        settings = (self.ceil_mode, self.count_include_pad, self.divisor_override)
        return avg_pool2d(x, self.kernel_size, self.stride, self.padding, *settings)


class MaxPool2d(nn.MaxPool2d):  # type: ignore[misc]
    """torch.nn.MaxPool2d, with the places of its maxima."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, kernel_size if stride is None else stride)
        self.kernel_size, self.stride, self.padding = kernel_size, stride or kernel_size, padding
        self.dilation, self.return_indices = dilation, return_indices
        self.ceil_mode = ceil_mode

    def construct(self, x: Any) -> Any:
        """Return the largest of each window, and where each stands in its picture."""
        settings = (self.kernel_size, self.stride, self.padding, self.dilation)
        return ops.max_pool2d(x, *settings, self.return_indices, self.ceil_mode)


def max_unpool2d(
    input: Any,  # torch's name
    indices: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> Any:
    """Return torch.nn.functional.max_unpool2d: zeros, and the maxima where they stood."""
    if output_size is None:
        kernel, steps = _each(kernel_size, 2), _each(stride or kernel_size, 2)
        sides, sizes = _each(padding, 2), input.shape[-2:]
        ends = [(sizes[n] - 1) * steps[n] - 2 * sides[n] + kernel[n] for n in range(2)]
    else:
        ends = [int(one) for one in tuple(output_size)[-2:]]
    front = input.shape[:-2]
    places = indices.reshape((-1, input.shape[-2] * input.shape[-1]))
    zeros = ops.zeros((places.shape[0], ends[0] * ends[1]), input.dtype)
    made = ops.tensor_scatter_elements(zeros, places, input.reshape(places.shape), 1)
    return made.reshape((*front, *ends))


class MaxUnpool2d(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.MaxUnpool2d."""

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride or kernel_size, padding

    def construct(self, x: Any, indices: Any, output_size: Any = None) -> Any:
        """Return pictures of zeros, and of what stands at its place."""
        return max_unpool2d(x, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxPool3d(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.MaxPool3d."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, stride or kernel_size
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def construct(self, x: Any) -> Any:
        """Return the largest number of each window."""
        settings = (self.padding, self.dilation, self.ceil_mode, self.return_indices)
        return max_pool3d(x, self.kernel_size, self.stride, *settings)


class AvgPool3d(nn.Cell):  # type: ignore[misc]
    """torch.nn.AvgPool3d."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride or kernel_size, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    def construct(self, x: Any) -> Any:
        """Return the mean of each window."""
        settings = (self.ceil_mode, self.count_include_pad, self.divisor_override)
        return avg_pool3d(x, self.kernel_size, self.stride, self.padding, *settings)


class AdaptiveAvgPool1d(nn.Cell):  # type: ignore[misc]
    """torch.nn.AdaptiveAvgPool1d."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def construct(self, input: Any) -> Any:
        """Return averages of (N, C, L), or of (C, L)."""
        return adaptive_avg_pool1d(input, self.output_size)


class AdaptiveAvgPool3d(nn.Cell):  # type: ignore[misc]
    """torch.nn.AdaptiveAvgPool3d."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def construct(self, x: Any) -> Any:
        """Return means, as many as were asked for."""
        return adaptive_avg_pool3d(x, self.output_size)


class Unfold(nn.Cell):  # type: ignore[misc]
    """torch.nn.Unfold: the patches of pictures, each a column."""

    def __init__(
        self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def construct(self, x: Any) -> Any:
        """Return (N, C * kernel, patches)."""
        return ops.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)
