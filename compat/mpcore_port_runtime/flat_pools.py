"""Averages of pictures and of rows whose last windows are cut off, and groups without weights.

Sources: aten/src/ATen/native/Pool.h (pooling_output_shape), AvgPool2d.cpp and
AdaptiveAveragePooling.cpp, torch 2.13.0. MindSpore 2.10.0 has other numbers for ``ceil_mode``, and
takes no sizes for rows that do not divide their length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

__all__ = ["AdaptiveAvgPool1d", "AvgPool2d", "GroupNorm", "adaptive_avg_pool1d", "avg_pool2d"]


def _pair(value: Any) -> tuple[int, int]:
    both = (value,) if isinstance(value, int) else tuple(value)
    return both * 2 if len(both) == 1 else both


def _windows(size: int, kernel: int, step: int, side: int, ceil: bool) -> list[int]:
    """Return where the windows of one axis begin, counted from its padding."""
    room = size + 2 * side - kernel
    count = (-(-room // step) if ceil else room // step) + 1
    if ceil and (count - 1) * step >= size + side:
        count -= 1  # the last one would begin in the padding
    return [step * place for place in range(count)]


def avg_pool2d(
    input: Any,  # torch's name, here and below
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return torch.nn.functional.avg_pool2d."""
    kernel, step, side = (_pair(one) for one in (kernel_size, stride or kernel_size, padding))
    sizes = tuple(int(size) for size in input.shape[-2:])
    counts, ends = [], []
    for axis in range(2):
        found = _windows(sizes[axis], kernel[axis], step[axis], side[axis], ceil_mode)
        least, most = (0, sizes[axis] + 2 * side[axis])
        if not count_include_pad:
            least, most = side[axis], side[axis] + sizes[axis]
        stops = [min(one + kernel[axis], most) for one in found]
        counts.append([stop - max(one, least) for one, stop in zip(found, stops, strict=True)])
        ends.append(max(found[-1] + kernel[axis] - sizes[axis] - side[axis], 0))
    x = input if input.ndim == 4 else input.expand_dims(0)
    x = ops.pad(x, (side[1], ends[1], side[0], ends[0]))
    made = ops.avg_pool2d(x, kernel, step) * float(kernel[0] * kernel[1])
    made = made[:, :, : len(counts[0]), : len(counts[1])]
    own = np.outer(counts[0], counts[1])
    by = own if divisor_override is None else np.float32(divisor_override)
    made = made / Tensor(np.asarray(by, np.float32)).astype(made.dtype)
    return made if input.ndim == 4 else made.squeeze(0)


class AvgPool2d(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.AvgPool2d."""

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

    def construct(self, input: Any) -> Any:
        """Return averages of (N, C, H, W), or of (C, H, W)."""
        cut = (self.ceil_mode, self.count_include_pad, self.divisor_override)
        return avg_pool2d(input, self.kernel_size, self.stride, self.padding, *cut)


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


class AdaptiveAvgPool1d(nn.Cell):  # type: ignore[misc]
    """torch.nn.AdaptiveAvgPool1d."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def construct(self, input: Any) -> Any:
        """Return averages of (N, C, L), or of (C, L)."""
        return adaptive_avg_pool1d(input, self.output_size)


class GroupNorm(nn.GroupNorm):  # type: ignore[misc]
    """torch.nn.GroupNorm, without weights too."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        if affine:
            super().__init__(num_groups, num_channels, eps)
        else:
            nn.Cell.__init__(self)
            self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.affine = affine

    def construct(self, x: Any) -> Any:
        """Return ``x`` with each group of channels as wide as the others."""
        if self.affine:
            return super().construct(x)
        return ops.group_norm(x, self.num_groups, None, None, float(self.eps))
