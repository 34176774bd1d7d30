"""``xformers.ops``: attention and SwiGLU; the package's docstring names its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from mpcore_compat.xformers import fmha
from mpcore_compat.xformers.fmha import (
    AttentionBias,
    LowerTriangularMask,
    memory_efficient_attention,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "AttentionBias",
    "LowerTriangularMask",
    "SwiGLU",
    "fmha",
    "memory_efficient_attention",
    "unbind",
]


class SwiGLU(nn.Module):  # type: ignore[misc]  # torch has no types here
    """``w3(silu(w1(x)) * w2(x))``, by the names of xformers' parameters.

    Args:
        in_features: the size of the last axis of what it is given.
        hidden_features: the size between.
        out_features: the size of the last axis of what it gives; ``in_features`` if left out.
        bias: whether its layers have one.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,  # xformers' signature
        *,
        _pack_weights: bool = True,
    ) -> None:
        super().__init__()
        out_features = out_features or in_features
        hidden_features = hidden_features or in_features
        self.w12: nn.Linear | None = None
        if _pack_weights:
            self.w12 = nn.Linear(in_features, 2 * hidden_features, bias=bias)
        else:
            self.w1 = nn.Linear(in_features, hidden_features, bias=bias)
            self.w2 = nn.Linear(in_features, hidden_features, bias=bias)
        self.w3 = nn.Linear(hidden_features, out_features, bias=bias)
        self.hidden_features = hidden_features
        self.out_features = out_features
        self.in_features = in_features
        self.op = None

    def forward(self, x: Tensor) -> Tensor:
        """Return what the three layers make of ``x``."""
        one, two = self.w12(x).chunk(2, dim=-1) if self.w12 else (self.w1(x), self.w2(x))
        return self.w3(functional.silu(one) * two)


def unbind(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Return the parts of ``x`` along ``dim``."""
    return tuple(torch.unbind(x, dim))
