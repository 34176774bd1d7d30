"""Layers with torch's arguments, which classes of scripts are made of: ``port.heirs.Linear``.

A class without an ``__init__`` of its own is made anywhere, with what torch's layer takes. Each is
of MindSpore's class, so that its Parameters have torch's names.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import nn, ops
from mindspore.common.initializer import Normal

from mpcore_port_runtime import layers
from mpcore_port_runtime.refusal import only

__all__ = ["GELU", "Dropout", "Embedding", "Linear", "Softmax"]


class Linear(nn.Dense):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.Linear."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        only("dtype", dtype, None, ms.float32)
        super().__init__(int(in_features), int(out_features), has_bias=bool(bias))


class Embedding(layers.Embedding):
    """torch.nn.Embedding."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        only("max_norm", max_norm, None)
        only("scale_grad_by_freq", scale_grad_by_freq, False)
        only("dtype", dtype, None, ms.float32)
        start = {"padding_idx": padding_idx, "embedding_table": Normal(1.0)}
        super().__init__(num_embeddings, embedding_dim, **start)


class Dropout(nn.Dropout):  # type: ignore[misc]
    """torch.nn.Dropout; other random numbers."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__(p=float(p))
        self.inplace = inplace


class GELU(nn.GELU):  # type: ignore[misc]
    """torch.nn.GELU."""

    def __init__(self, approximate: str = "none") -> None:
        only("approximate", approximate, "none", "tanh")
        super().__init__(approximate=approximate == "tanh")


class Softmax(nn.Softmax):  # type: ignore[misc]
    """torch.nn.Softmax."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def construct(self, input: Any) -> Any:  # torch's name
        """Return the shares along the axis, or along the one that the rank says."""
        return layers.softmax(input) if self.dim is None else ops.softmax(input, axis=self.dim)
