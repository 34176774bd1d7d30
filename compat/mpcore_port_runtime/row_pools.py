"""Averages of rows by sizes that do not divide their length, and groups without weights.

Source: aten/src/ATen/native/AdaptiveAveragePooling.cpp, torch 2.13.0. MindSpore 2.10.0 takes no
such sizes.
"""

from __future__ import annotations

from typing import Any

from mindspore import nn, ops

__all__ = ["AdaptiveAvgPool1d", "GroupNorm", "adaptive_avg_pool1d"]


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
