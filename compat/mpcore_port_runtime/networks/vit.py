"""The vision transformer.

Paper: Dosovitskiy 2020 (arXiv 2010.11929). Names of parameters and arguments: torchvision 0.28
``models/vision_transformer.py``; attention: torch 2.13 ``nn/modules/activation.py``.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from typing import Any

import mindspore as ms
from mindspore import nn, ops
from mindspore.common.initializer import Normal, TruncatedNormal, XavierUniform, initializer

from mpcore_port_runtime import torch_nn
from mpcore_port_runtime.functional import scaled_dot_product_attention
from mpcore_port_runtime.modules import fill
from mpcore_port_runtime.networks import weights
from mpcore_port_runtime.networks.weights import maker

__all__ = [
    "EncoderBlock",
    "VisionTransformer",
    "vit_b_16",
    "vit_b_32",
    "vit_h_14",
    "vit_l_16",
    "vit_l_32",
]

_norm = functools.partial(torch_nn.LayerNorm, eps=1e-6)


class _Attention(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Self-attention with one projection in for queries, keys and values."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        shape = (3 * width, width)
        self.in_proj_weight = ms.Parameter(initializer(XavierUniform(), shape, ms.float32))
        self.in_proj_bias = ms.Parameter(initializer("zeros", shape[:1], ms.float32))
        self.out_proj = torch_nn.Linear(width, width)
        fill(self.out_proj.bias, "zeros")
        self.heads, self.dropout = heads, float(dropout)

    def construct(self, x: Any) -> Any:
        """Return what is attended to, ``(N, S, width)`` of the same."""
        count, length, width = x.shape
        every = ops.dense(x, self.in_proj_weight.astype(x.dtype), self.in_proj_bias.astype(x.dtype))
        every = every.reshape(count, length, 3, self.heads, width // self.heads)
        query, key, value = every.permute(2, 0, 3, 1, 4)
        drop = self.dropout if self.training else 0.0
        made = scaled_dot_product_attention(query, key, value, dropout_p=drop)
        return self.out_proj(made.permute(0, 2, 1, 3).reshape(count, length, width))


class EncoderBlock(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Attention and two linear layers, each behind a norm and beside a shortcut."""

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        mlp_dim: int,
        dropout: float,
        attention_dropout: float,
        norm_layer: Any = _norm,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.ln_1 = norm_layer(hidden_dim)
        self.self_attention = _Attention(hidden_dim, num_heads, attention_dropout)
        self.dropout, self.ln_2 = torch_nn.Dropout(dropout), norm_layer(hidden_dim)
        ends = torch_nn.Linear(hidden_dim, mlp_dim), torch_nn.Linear(mlp_dim, hidden_dim)
        for one in ends:
            fill(one.weight, XavierUniform())
            fill(one.bias, Normal(1e-6))
        drops = torch_nn.Dropout(dropout), torch_nn.Dropout(dropout)
        self.mlp = nn.SequentialCell(ends[0], torch_nn.GELU(), drops[0], ends[1], drops[1])

    def construct(self, x: Any) -> Any:
        """Return ``(N, S, hidden_dim)`` of the same."""
        x = x + self.dropout(self.self_attention(self.ln_1(x)))
        return x + self.mlp(self.ln_2(x))


class _Encoder(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    def __init__(self, length: int, count: int, settings: tuple[Any, ...], norm: Any) -> None:
        super().__init__()
        width, drop = settings[1], settings[3]
        shape = (1, length, width)
        self.pos_embedding = ms.Parameter(initializer(Normal(0.02), shape, ms.float32))
        self.dropout = torch_nn.Dropout(drop)
        make: Any = EncoderBlock
        blocks = [(f"encoder_layer_{i}", make(*settings, norm)) for i in range(count)]
        self.layers = nn.SequentialCell(OrderedDict(blocks))
        self.ln = norm(width)

    def construct(self, x: Any) -> Any:
        return self.ln(self.layers(self.dropout(x + self.pos_embedding)))


class VisionTransformer(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Patches of a picture and a token, an encoder, and a linear layer on the token.

    Args:
        image_size: pixels of a side; no other pictures are taken.
        patch_size: pixels of a patch's side, which divides it.
        num_layers: blocks of the encoder.
        num_heads: heads of its attention.
        hidden_dim: its width.
        mlp_dim: the width of its linear layers.
        dropout: the probability behind attention and linear layers.
        attention_dropout: the probability in attention.
        num_classes: how many numbers come out.
        representation_size: the width of one more layer, with tanh, in front of the last; or None.
        norm_layer: what makes a norm of a width; LayerNorm with eps of 1e-6.
    """

    def __init__(
        self,
        image_size: int,
        patch_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        mlp_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        num_classes: int = 1000,
        representation_size: int | None = None,
        norm_layer: Any = _norm,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            msg = f"`patch_size` must divide `image_size`, got {patch_size} and {image_size}"
            raise ValueError(msg)
        self.image_size, self.patch_size, self.hidden_dim = image_size, patch_size, hidden_dim
        self.class_token = ms.Parameter(initializer("zeros", (1, 1, hidden_dim), ms.float32))
        self.conv_proj = torch_nn.Conv2d(3, hidden_dim, patch_size, patch_size)
        fill(self.conv_proj.weight, TruncatedNormal(math.sqrt(1 / (3 * patch_size**2))))
        fill(self.conv_proj.bias, "zeros")
        self.seq_length = (image_size // patch_size) ** 2 + 1
        settings = (num_heads, hidden_dim, mlp_dim, dropout, attention_dropout)
        self.encoder = _Encoder(self.seq_length, num_layers, settings, norm_layer)
        parts = []
        if representation_size is not None:
            before = torch_nn.Linear(hidden_dim, representation_size)
            fill(before.weight, TruncatedNormal(math.sqrt(1 / hidden_dim)))
            fill(before.bias, "zeros")
            parts = [("pre_logits", before), ("act", nn.Tanh())]
        last = torch_nn.Linear(representation_size or hidden_dim, num_classes)
        fill(last.weight, "zeros")
        fill(last.bias, "zeros")
        self.heads = nn.SequentialCell(OrderedDict([*parts, ("head", last)]))
        self.set_train()

    def construct(self, x: Any) -> Any:
        """Return a number for each class, of ``(N, 3, image_size, image_size)``."""
        if x.shape[2:] != (self.image_size, self.image_size):
            msg = f"pictures must have {self.image_size} pixels a side, got {x.shape}"
            raise ValueError(msg)
        x = ops.flatten(self.conv_proj(x), start_dim=2).swapaxes(1, 2)
        token = self.class_token.astype(x.dtype)
        x = ops.cat((token.broadcast_to((len(x), 1, self.hidden_dim)), x), 1)
        return self.heads(self.encoder(x)[:, 0])


def _made(*sizes: int, image_size: int = 224, **settings: Any) -> VisionTransformer:
    return VisionTransformer(image_size, *sizes, **settings)


def _vit(*sizes: int) -> Any:
    """A vision transformer."""
    return functools.partial(_made, *sizes)


vit_b_16 = maker("vit_b_16", weights.ViT_B_16_Weights, _vit(16, 12, 12, 768, 3072))
vit_b_32 = maker("vit_b_32", weights.ViT_B_32_Weights, _vit(32, 12, 12, 768, 3072))
vit_l_16 = maker("vit_l_16", weights.ViT_L_16_Weights, _vit(16, 24, 16, 1024, 4096))
vit_l_32 = maker("vit_l_32", weights.ViT_L_32_Weights, _vit(32, 24, 16, 1024, 4096))
vit_h_14 = maker("vit_h_14", weights.ViT_H_14_Weights, _vit(14, 32, 16, 1280, 5120))
