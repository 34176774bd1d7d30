"""Layers that networks take from timm, as Cells with torch's Parameters in torch's order.

Sources: timm 1.0.31 ``layers/mlp.py``, ``layers/patch_embed.py``, ``layers/attention.py``,
``layers/layer_scale.py``, ``layers/norm.py``, ``layers/weight_init.py``; ``models/
vision_transformer.py`` of timm 0.3.2 for ``qk_scale``. Classes that are handed in (``act_layer``,
``norm_layer``) are called as torch's. Where the versions give arguments another order, they are
taken by keyword alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from itertools import repeat
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from mpcore_port_runtime import inits, torch_nn
from mpcore_port_runtime.functional import scaled_dot_product_attention
from mpcore_port_runtime.layers import LayerNorm
from mpcore_port_runtime.others import to_2tuple
from mpcore_port_runtime.refusal import only

__all__ = [
    "Attention",
    "ConvMlp",
    "LayerNorm2d",
    "LayerScale",
    "Mlp",
    "PatchEmbed",
    "lecun_normal_",
    "to_1tuple",
    "to_3tuple",
    "to_4tuple",
    "to_ntuple",
]

_TRUNCATED = 0.87962566103423978  # the deviation of normal numbers between -2 and 2


def to_ntuple(n: int) -> Any:
    """Return timm.layers.helpers.to_ntuple: what makes ``n`` of one."""

    def made(x: Any) -> tuple[Any, ...]:
        is_several = isinstance(x, Iterable) and not isinstance(x, str)
        return tuple(x) if is_several else tuple(repeat(x, n))

    return made


to_1tuple, to_3tuple, to_4tuple = to_ntuple(1), to_ntuple(3), to_ntuple(4)


def lecun_normal_(tensor: Any) -> Any:
    """Give a Parameter normal values, cut at two deviations; their square is 1 / inputs."""
    std = math.sqrt(1.0 / inits.fans(tensor)[0]) / _TRUNCATED
    return inits.trunc_normal_(tensor, 0.0, std, -2 * std, 2 * std)


class Mlp(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """timm.layers.Mlp: two layers with an activation between them."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        act_layer: Any = torch_nn.GELU,
        *,
        norm_layer: Any = None,
        bias: Any = True,
        drop: Any = 0.0,
        use_conv: bool = False,
    ) -> None:
        super().__init__()
        inner, outer = hidden_features or in_features, out_features or in_features
        first, second = to_2tuple(bias)
        drops = to_2tuple(drop)
        make = partial(torch_nn.Conv2d, kernel_size=1) if use_conv else torch_nn.Linear
        self.fc1 = make(in_features, inner, bias=first)
        self.act = act_layer()
        self.drop1 = torch_nn.Dropout(drops[0])
        self.norm = nn.Identity() if norm_layer is None else norm_layer(inner)
        self.fc2 = make(inner, outer, bias=second)
        self.drop2 = torch_nn.Dropout(drops[1])

    def construct(self, x: Any) -> Any:
        """Return what the two layers make of ``x``."""
        inner = self.norm(self.drop1(self.act(self.fc1(x))))
        return self.drop2(self.fc2(inner))


class ConvMlp(nn.Cell):  # type: ignore[misc]
    """timm.layers.ConvMlp: two convolutions of one pixel, and what is between them."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        act_layer: Any = torch_nn.ReLU,
        norm_layer: Any = None,
        bias: Any = True,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        inner, outer = hidden_features or in_features, out_features or in_features
        first, second = to_2tuple(bias)
        self.fc1 = torch_nn.Conv2d(in_features, inner, 1, bias=first)
        self.norm = norm_layer(inner) if norm_layer else nn.Identity()
        self.act = act_layer()
        self.drop = torch_nn.Dropout(drop)
        self.fc2 = torch_nn.Conv2d(inner, outer, 1, bias=second)

    def construct(self, x: Any) -> Any:
        """Return what the two convolutions make of ``x``."""
        return self.fc2(self.drop(self.act(self.norm(self.fc1(x)))))


class LayerScale(nn.Cell):  # type: ignore[misc]
    """timm.layers.LayerScale: a factor for each channel."""

    def __init__(self, dim: int, init_values: float = 1e-5, inplace: bool = False) -> None:
        super().__init__()
        only("inplace", inplace, False)
        self.init_values = init_values
        self.gamma = ms.Parameter(ops.full((dim,), float(init_values), dtype=ms.float32))

    def construct(self, x: Any) -> Any:
        """Return ``x`` by its factors."""
        return x * self.gamma


class LayerNorm2d(LayerNorm):
    """timm.layers.LayerNorm2d: over the channels of (N, C, H, W)."""

    def __init__(self, num_channels: int, eps: float = 1e-6, affine: bool = True) -> None:
        super().__init__((num_channels,), eps, affine)

    def construct(self, x: Any) -> Any:
        """Return ``x`` with channels of mean 0 and variance 1 at each place."""
        return super().construct(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _as(x: Any, fmt: str) -> Any:
    """Return (N, C, H, W) in another order."""
    if fmt == "NHWC":
        return x.permute(0, 2, 3, 1)
    if fmt == "NCHW":
        return x
    flat = x.flatten(start_dim=2)
    return flat.swapaxes(1, 2) if fmt == "NLC" else flat


class PatchEmbed(nn.Cell):  # type: ignore[misc]
    """timm.layers.PatchEmbed: pictures become rows of patches."""

    def __init__(
        self,
        img_size: Any = 224,
        patch_size: Any = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        norm_layer: Any = None,
        flatten: bool = True,
        output_fmt: str | None = None,
        bias: bool = True,
        strict_img_size: bool = True,
        dynamic_img_pad: bool = False,
    ) -> None:
        super().__init__()
        only("dynamic_img_pad", dynamic_img_pad, False)
        only("output_fmt", output_fmt, None, "NCHW", "NHWC", "NCL", "NLC")
        self.patch_size = to_2tuple(patch_size)
        self.img_size = self.grid_size = self.num_patches = None
        if img_size is not None:
            self.img_size = to_2tuple(img_size)
            pairs = zip(self.img_size, self.patch_size, strict=True)
            self.grid_size = tuple(size // part for size, part in pairs)
            self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.output_fmt = "NCHW" if output_fmt is None else output_fmt
        self.flatten = flatten and output_fmt is None
        self.strict_img_size = strict_img_size
        self.proj = torch_nn.Conv2d(
            in_chans, embed_dim, self.patch_size, self.patch_size, bias=bias
        )
        self.norm = norm_layer(embed_dim) if norm_layer else nn.Identity()

    def feat_ratio(self, as_scalar: bool = True) -> Any:
        """Return by how much a picture shrinks."""
        return max(self.patch_size) if as_scalar else self.patch_size

    def _judge(self, sides: tuple[int, int]) -> None:
        """Raise where a picture's size is not the network's."""
        if self.img_size is None:
            return
        if self.strict_img_size and sides != tuple(self.img_size):
            msg = f"Input size {sides} doesn't match model {tuple(self.img_size)}."
            raise AssertionError(msg)
        left = [side % part for side, part in zip(sides, self.patch_size, strict=True)]
        if not self.strict_img_size and any(left):
            msg = f"Input size {sides} should be divisible by patch size {self.patch_size}."
            raise AssertionError(msg)

    def construct(self, x: Any) -> Any:
        """Return a row for each patch of (N, C, H, W)."""
        self._judge(tuple(x.shape[2:]))
        x = self.proj(x)
        return self.norm(_as(x, "NLC" if self.flatten else self.output_fmt))


class Attention(nn.Cell):  # type: ignore[misc]
    """timm.layers.Attention: every row looks at every row, with several heads."""

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        attn_head_dim: int | None = None,
        dim_out: int | None = None,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        gated: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Any = None,
        qk_scale: float | None = None,
    ) -> None:
        super().__init__()
        if attn_head_dim is None and dim % num_heads:
            msg = "dim should be divisible by num_heads"
            raise AssertionError(msg)
        if (qk_norm or scale_norm) and norm_layer is None:
            msg = "norm_layer must be provided if qk_norm or scale_norm is True"
            raise AssertionError(msg)
        self.num_heads = num_heads
        self.head_dim = attn_head_dim or dim // num_heads
        self.attn_dim = num_heads * self.head_dim
        self.scale = qk_scale or self.head_dim**-0.5
        self.qkv = torch_nn.Linear(dim, self.attn_dim * 3, bias=qkv_bias)
        self.q_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.attn_drop = torch_nn.Dropout(attn_drop)
        self.norm = norm_layer(self.attn_dim) if scale_norm else nn.Identity()
        self.gate = torch_nn.Linear(dim, self.attn_dim, bias=qkv_bias) if gated else None
        self.proj = torch_nn.Linear(self.attn_dim, dim_out or dim, bias=proj_bias)
        self.proj_drop = torch_nn.Dropout(proj_drop)

    def construct(self, x: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        """Return (N, L, C) behind attention."""
        rows, length, _ = x.shape
        gate = None if self.gate is None else ops.sigmoid(self.gate(x))
        split = self.qkv(x).reshape(rows, length, 3, self.num_heads, self.head_dim)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        mask = None if is_causal else attn_mask
        rate = self.attn_drop.p if self.training else 0.0
        x = scaled_dot_product_attention(
            self.q_norm(q), self.k_norm(k), v, mask, rate, is_causal, self.scale
        )
        inner = self.norm(x.swapaxes(1, 2).reshape(rows, length, self.attn_dim))
        if gate is not None:
            inner = inner * gate
        return self.proj_drop(self.proj(inner))
