"""Multiply-adds of one kernel of aten, from the shapes of what it got.

Of what is not in this table the count is not known; nothing else is guessed. Tried with torch
2.13.0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["multiply_adds"]


def _matmul(a: torch.Tensor, b: torch.Tensor) -> int:
    return int(a.numel() * (b.shape[-1] if b.dim() > 1 else 1))


def _linear(a: torch.Tensor, weight: torch.Tensor) -> int:
    return int(a.numel() * weight.shape[0])


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    rows = math.prod(query.shape[:-1])
    return int(rows * key.shape[-2] * (query.shape[-1] + value.shape[-1]))


def _recurrent(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> int:
    return int(math.prod(x.shape[:-1]) * (weight.numel() + state.numel()))


_COUNTS: dict[str, tuple[Callable[..., int], int]] = {
    # kernel: (count, place of its first operand)
    **dict.fromkeys(("mm", "bmm", "mv", "_grouped_mm"), (_matmul, 0)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), (_matmul, 1)),
    **dict.fromkeys(("linear", "mkldnn_linear"), (_linear, 0)),
    "mkldnn_rnn_layer": (_recurrent, 0),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
        ),
        (_attention, 0),
    ),
}
_CONVOLUTIONS = ("convolution", "convolution_overrideable", "mkldnn_convolution")


def multiply_adds(name: str, args: tuple[Any, ...], result: Any) -> int:
    """Return how many a kernel of the forward pass did; 0 where that is not known."""
    if name in _CONVOLUTIONS:
        transposed = name != "mkldnn_convolution" and bool(args[6])
        each: torch.Tensor = args[0] if transposed else result
        return int(each.numel() * math.prod(args[1].shape[1:]))
    count, first = _COUNTS.get(name, (None, 0))
    if count is None:
        return 0
    operands = 2 if count in (_matmul, _linear) else 3
    return count(*args[first : first + operands])
