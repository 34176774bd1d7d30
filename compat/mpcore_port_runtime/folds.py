"""Pictures that are put together from patches, which are added where they overlap.

Source: ``fold`` of torch/nn/functional.py and ``Fold`` of torch/nn/modules/fold.py, torch 2.13.0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

__all__ = ["Fold", "fold"]


def fold(
    input: Any,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Any:
    """Return (N, C, H, W) of patches (N, C * kernel, patches), or without N for both."""
    height, width = _pair(output_size)
    pad_y, pad_x = _pair(padding)
    kernel, spread, step = _pair(kernel_size), _pair(dilation), _pair(stride)
    high, wide = height + 2 * pad_y, width + 2 * pad_x
    rows = _places(high, kernel[0], spread[0], step[0])
    columns = _places(wide, kernel[1], spread[1], step[1])
    # (kernel row, kernel column, patch row, patch column): where in the padded picture it lies
    places = rows[:, None, :, None] * wide + columns[None, :, None, :]
    patches = input if input.ndim == 3 else input.expand_dims(0)
    channels = patches.shape[1] // (kernel[0] * kernel[1])
    values = patches.reshape(patches.shape[0] * channels, -1)
    made = ops.zeros((values.shape[0], high * wide), values.dtype)
    made = ops.index_add(made, Tensor(places.reshape(-1).astype(np.int32)), values, 1)
    made = made.reshape(patches.shape[0], channels, high, wide)
    made = made[:, :, pad_y : pad_y + height, pad_x : pad_x + width]
    return made if input.ndim == 3 else made[0]


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)


def _places(size: int, kernel: int, spread: int, step: int) -> Any:
    """Return where the parts of a kernel lie along one axis, a row for each part."""
    count = (size - spread * (kernel - 1) - 1) // step + 1
    return np.arange(kernel)[:, None] * spread + np.arange(count)[None, :] * step


class Fold(nn.Cell):  # type: ignore[misc]
    """torch.nn.Fold: pictures of their patches."""

    def __init__(
        self,
        output_size: Any,
        kernel_size: Any,
        dilation: Any = 1,
        padding: Any = 0,
        stride: Any = 1,
    ) -> None:
        super().__init__()
        self.output_size, self.kernel_size = output_size, kernel_size
        self.dilation, self.padding, self.stride = dilation, padding, stride

    def construct(self, x: Any) -> Any:
        """Return (N, C, H, W)."""
        sizes = (self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)
        return fold(x, *sizes)
