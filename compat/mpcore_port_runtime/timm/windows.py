"""Attention within windows, and of a class alone, that networks take from timm.

Sources: timm 1.0.31 ``models/swin_transformer.py``, ``models/cait.py``; the first of timm 0.6.13
for blocks of rows (N, L, C), ``drop``, and windows given as one number. Where the versions give
arguments another order, they are taken by keyword alone.
"""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mpcore_port_runtime import inits, torch_nn
from mpcore_port_runtime.functional import roll
from mpcore_port_runtime.others import DropPath, to_2tuple
from mpcore_port_runtime.refusal import only
from mpcore_port_runtime.timm.layers import Mlp

__all__ = [
    "ClassAttn",
    "SwinTransformerBlock",
    "WindowAttention",
    "window_partition",
    "window_reverse",
]

_APART = -100.0  # what timm adds to scores of places that a shift has brought together


def window_partition(x: Any, window_size: Any) -> Any:
    """Return the windows of (N, H, W, C), one below the other."""
    high, wide = to_2tuple(window_size)
    count, height, width, channels = x.shape
    cut = x.reshape((count, height // high, high, width // wide, wide, channels))
    return cut.permute(0, 1, 3, 2, 4, 5).reshape((-1, high, wide, channels))


def window_reverse(windows: Any, window_size: Any, H: int, W: int) -> Any:  # noqa: N803
    """Return (N, H, W, C) of its windows."""
    high, wide = to_2tuple(window_size)
    cut = windows.reshape((-1, H // high, W // wide, high, wide, windows.shape[-1]))
    return cut.permute(0, 1, 3, 2, 4, 5).reshape((-1, H, W, windows.shape[-1]))


def _apart_by(high: int, wide: int) -> np.ndarray[Any, Any]:
    """Return for each two places of a window which row of the table their distance has."""
    rows, columns = (one.reshape(-1) for one in np.mgrid[:high, :wide])
    down = rows[:, None] - rows[None, :] + high - 1
    along = columns[:, None] - columns[None, :] + wide - 1
    return np.asarray(down * (2 * wide - 1) + along, np.int64)


class WindowAttention(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """timm.models.swin_transformer.WindowAttention: with a bias by distance."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        window_size: Any = 7,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim, self.num_heads = dim, num_heads
        self.window_size = high, wide = to_2tuple(window_size)
        self.window_area = high * wide
        each = head_dim or dim // num_heads
        self.scale = each**-0.5
        table = ops.zeros(((2 * high - 1) * (2 * wide - 1), num_heads), ms.float32)
        self.relative_position_bias_table = ms.Parameter(table)
        self.register_buffer(
            "relative_position_index", Tensor(_apart_by(high, wide)), persistent=False
        )
        self.qkv = torch_nn.Linear(dim, each * num_heads * 3, bias=qkv_bias)
        self.attn_drop = torch_nn.Dropout(attn_drop)
        self.proj = torch_nn.Linear(each * num_heads, dim)
        self.proj_drop = torch_nn.Dropout(proj_drop)
        self.softmax = torch_nn.Softmax(-1)
        inits.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def _bias(self) -> Any:
        """Return what is added to the scores of each two places, for each head."""
        rows = self.relative_position_bias_table[self.relative_position_index.reshape(-1)]
        area = self.window_area
        return rows.reshape((area, area, -1)).permute(2, 0, 1).unsqueeze(0)

    def construct(self, x: Any, mask: Any = None) -> Any:
        """Return (windows, places, C) behind attention; ``mask`` is added to the scores."""
        count, places, _ = x.shape
        split = self.qkv(x).reshape((count, places, 3, self.num_heads, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores = ops.matmul(q * self.scale, k.swapaxes(-2, -1)) + self._bias()
        if mask is not None:
            by_picture = (-1, mask.shape[0], self.num_heads, places, places)
            scores = scores.reshape(by_picture) + mask.unsqueeze(1).unsqueeze(0)
            scores = scores.reshape((-1, self.num_heads, places, places))
        shares = self.attn_drop(self.softmax(scores))
        inner = ops.matmul(shares, v).swapaxes(1, 2).reshape((count, places, -1))
        return self.proj_drop(self.proj(inner))


class SwinTransformerBlock(nn.Cell):  # type: ignore[misc]
    """timm.models.swin_transformer.SwinTransformerBlock, of (N, H, W, C) or of rows (N, L, C).

    The first is timm's since 0.9, the second was its up to 0.8.
    """

    def __init__(
        self,
        dim: int,
        input_resolution: Any,
        num_heads: int = 4,
        *,
        head_dim: int | None = None,
        window_size: Any = 7,
        shift_size: Any = 0,
        always_partition: bool = False,
        dynamic_mask: bool = False,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
        drop_path: float = 0.0,
        act_layer: Any = torch_nn.GELU,
        norm_layer: Any = torch_nn.LayerNorm,
        drop: float | None = None,
    ) -> None:
        super().__init__()
        only("always_partition", always_partition, False)
        only("dynamic_mask", dynamic_mask, False)
        rate = proj_drop if drop is None else drop
        self.dim, self.mlp_ratio = dim, mlp_ratio
        self.input_resolution = to_2tuple(input_resolution)
        wanted = zip(
            self.input_resolution, to_2tuple(window_size), to_2tuple(shift_size), strict=True
        )
        # a window as large as the picture is all of it, and nothing is shifted
        fitting = [(side, 0) if side <= one else (one, by) for side, one, by in wanted]
        self.window_size = tuple(one for one, _ in fitting)
        self.shift_size = tuple(by for _, by in fitting)
        self.window_area = self.window_size[0] * self.window_size[1]
        # up to 0.8 one side as small as the window was enough for both
        least = min(self.input_resolution)
        self._is_as_older = all(self.input_resolution) and (
            least > max(to_2tuple(window_size))
            or (set(self.window_size) == {least} and not any(self.shift_size))
        )
        self.norm1 = norm_layer(dim)
        self.attn = WindowAttention(
            dim,
            num_heads,
            head_dim=head_dim,
            window_size=self.window_size,
            qkv_bias=qkv_bias,
            attn_drop=attn_drop,
            proj_drop=rate,
        )
        self.drop_path1 = DropPath(drop_path).set_train() if drop_path > 0.0 else nn.Identity()
        self.norm2 = norm_layer(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), act_layer=act_layer, drop=rate)
        self.drop_path2 = DropPath(drop_path).set_train() if drop_path > 0.0 else nn.Identity()
        self.register_buffer("attn_mask", self._mask(), persistent=False)

    def _mask(self) -> Any:
        """Return what keeps places apart that a shift has brought into one window, or None."""
        if not any(self.shift_size):
            return None
        sides = [
            math.ceil(side / one) * one
            for side, one in zip(self.input_resolution, self.window_size, strict=True)
        ]
        parts = np.zeros((1, *sides, 1), np.float32)
        down, along = (
            (slice(0, -one), slice(-one, -by), slice(-by, None))
            for one, by in zip(self.window_size, self.shift_size, strict=True)
        )
        for place, (rows, columns) in enumerate((r, c) for r in down for c in along):
            parts[:, rows, columns] = place
        cut = window_partition(Tensor(parts), self.window_size).asnumpy()
        cut = cut.reshape(-1, self.window_area)
        differ = cut[:, None, :] != cut[:, :, None]
        return Tensor(np.where(differ, np.float32(_APART), np.float32(0.0)))

    def _attended(self, x: Any) -> Any:
        """Return (N, H, W, C) behind attention in its windows."""
        _, height, width, channels = x.shape
        down, along = self.shift_size
        if down or along:
            x = roll(x, (-down, -along), (1, 2))
        high, wide = self.window_size
        below, right = -height % high, -width % wide
        if below or right:
            x = ops.pad(x, (0, 0, 0, right, 0, below))
        windows = window_partition(x, self.window_size).reshape((-1, self.window_area, channels))
        seen = self.attn(windows, self.attn_mask).reshape((-1, high, wide, channels))
        x = window_reverse(seen, self.window_size, height + below, width + right)
        x = x[:, :height, :width, :]
        return roll(x, (down, along), (1, 2)) if down or along else x

    def construct(self, x: Any) -> Any:
        """Return what comes out, shaped as what came in."""
        shape = x.shape
        if len(shape) == 3:
            height, width = self.input_resolution
            if not self._is_as_older:
                msg = (
                    f"rows of {height} by {width} places: timm that takes rows has windows of "
                    "another size here, or does not shift them"
                )
                raise NotImplementedError(msg)
            if shape[1] != height * width:
                msg = "input feature has wrong size"
                raise AssertionError(msg)
            seen = self.norm1(x).reshape((shape[0], height, width, shape[2]))
            x = x + self.drop_path1(self._attended(seen).reshape(shape))
            return x + self.drop_path2(self.mlp(self.norm2(x)))
        x = x + self.drop_path1(self._attended(self.norm1(x)))
        x = x.reshape((shape[0], -1, shape[-1]))
        return (x + self.drop_path2(self.mlp(self.norm2(x)))).reshape(shape)


class ClassAttn(nn.Cell):  # type: ignore[misc]
    """timm.models.cait.ClassAttn: the first row looks at every row."""

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.q = torch_nn.Linear(dim, dim, bias=qkv_bias)
        self.k = torch_nn.Linear(dim, dim, bias=qkv_bias)
        self.v = torch_nn.Linear(dim, dim, bias=qkv_bias)
        self.attn_drop = torch_nn.Dropout(attn_drop)
        self.proj = torch_nn.Linear(dim, dim)
        self.proj_drop = torch_nn.Dropout(proj_drop)

    def construct(self, x: Any) -> Any:
        """Return the first row alone, (N, 1, C)."""
        count, _, dim = x.shape
        by_head = (count, -1, self.num_heads, dim // self.num_heads)
        q = self.q(x[:, 0:1]).reshape(by_head).permute(0, 2, 1, 3) * self.scale
        k = self.k(x).reshape(by_head).permute(0, 2, 1, 3)
        v = self.v(x).reshape(by_head).permute(0, 2, 1, 3)
        scores = ops.matmul(q, k.swapaxes(-2, -1))
        shares = self.attn_drop(ops.softmax(scores, axis=-1))
        seen = ops.matmul(shares, v).swapaxes(1, 2).reshape((count, 1, dim))
        return self.proj_drop(self.proj(seen))
