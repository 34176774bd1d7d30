"""timm's vision transformer, as a Cell with torch's Parameters in torch's order.

Sources: timm 1.0.31 ``models/vision_transformer.py``; the same file of timm 0.3.2 and 0.5.4 for
what scripts still hand over (``qk_scale``, ``drop``, ``representation_size``), and for networks
whose own ``forward_features`` returns (N, C) already: the head follows at once. Where the versions
give arguments another order, they are taken by keyword alone.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from mpcore_port_runtime import inits, torch_nn
from mpcore_port_runtime.others import DropPath
from mpcore_port_runtime.refusal import only
from mpcore_port_runtime.resizing import interpolate
from mpcore_port_runtime.timm.layers import (
    Attention,
    LayerScale,
    Mlp,
    PatchEmbed,
    lecun_normal_,
)

__all__ = [
    "Block",
    "VisionTransformer",
    "init_vit_weights",
    "init_weights_vit_timm",
    "resample_abs_pos_embed",
    "resize_pos_embed",
]

_POOLS = ("token", "", "avg", "avgmax", "max")
_NORM = partial(torch_nn.LayerNorm, eps=1e-6)


def _in_old_order(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a Block of timm up to 0.5 takes behind `qkv_bias`, told by where its layers are.

    Raises:
        TypeError: the arguments are in no order of those.
    """
    if len(given) == 6 and callable(given[4]):
        return given  # 0.3
    if len(given) == 5 and callable(given[3]):
        return (None, *given)  # 0.4 and 0.5 have no qk_scale
    msg = "Block: give what stands behind `qkv_bias` by keyword"
    raise TypeError(msg)


class Block(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """timm.models.vision_transformer.Block: attention and two layers, each added to what came in.

    ``drop`` and ``qk_scale`` are timm's up to 0.6: the first is ``proj_drop`` since.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = False,
        *older: Any,
        qk_norm: bool = False,
        scale_attn_norm: bool = False,
        scale_mlp_norm: bool = False,
        proj_bias: bool = True,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
        init_values: float | None = None,
        drop_path: float = 0.0,
        act_layer: Any = torch_nn.GELU,
        norm_layer: Any = _NORM,
        mlp_layer: Any = Mlp,
        attn_layer: Any = Attention,
        depth: int = 0,
        drop: float | None = None,
        qk_scale: float | None = None,
    ) -> None:
        super().__init__()
        if older:
            qk_scale, drop, attn_drop, drop_path, act_layer, norm_layer = _in_old_order(older)
        del depth  # for kinds of attention that are not here
        rate = proj_drop if drop is None else drop
        scaled = {} if qk_scale is None else {"qk_scale": qk_scale}
        self.norm1 = norm_layer(dim)
        self.attn = attn_layer(
            dim,
            num_heads=num_heads,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            scale_norm=scale_attn_norm,
            proj_bias=proj_bias,
            attn_drop=attn_drop,
            proj_drop=rate,
            norm_layer=norm_layer,
            **scaled,
        )
        self.ls1 = _scaled(dim, init_values)
        self.drop_path1 = _dropped(drop_path)
        self.norm2 = norm_layer(dim)
        self.mlp = mlp_layer(
            in_features=dim,
            hidden_features=int(dim * mlp_ratio),
            act_layer=act_layer,
            norm_layer=norm_layer if scale_mlp_norm else None,
            bias=proj_bias,
            drop=rate,
        )
        self.ls2 = _scaled(dim, init_values)
        self.drop_path2 = _dropped(drop_path)

    def __getattr__(self, name: str) -> Any:
        """Return what a Cell holds; `drop_path` is the one of both that timm had up to 0.5."""
        return super().__getattr__("drop_path1" if name == "drop_path" else name)

    def construct(self, x: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        """Return rows of tokens behind attention and the two layers."""
        seen = self.norm1(x)
        if attn_mask is None and not is_causal:
            seen = self.attn(seen)
        else:
            seen = self.attn(seen, attn_mask=attn_mask, is_causal=is_causal)
        x = x + self.drop_path1(self.ls1(seen))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


def _scaled(dim: int, init_values: float | None) -> Any:
    return LayerScale(dim, init_values) if init_values else nn.Identity()


def _dropped(rate: float) -> Any:
    return DropPath(rate).set_train() if rate > 0.0 else nn.Identity()


class VisionTransformer(nn.Cell):  # type: ignore[misc]
    """timm.models.vision_transformer.VisionTransformer.

    Raises:
        NotImplementedError: an argument asks for what is not here.
    """

    def __init__(
        self,
        img_size: Any = 224,
        patch_size: Any = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        *,
        global_pool: str = "token",
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        scale_attn_norm: bool = False,
        scale_mlp_norm: bool = False,
        proj_bias: bool = True,
        init_values: float | None = None,
        class_token: bool = True,
        pos_embed: str = "learn",
        no_embed_class: bool = False,
        reg_tokens: int = 0,
        pre_norm: bool = False,
        final_norm: bool = True,
        fc_norm: bool | None = None,
        pool_include_prefix: bool = False,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        weight_init: str = "",
        fix_init: bool = False,
        embed_layer: Any = PatchEmbed,
        norm_layer: Any = None,
        act_layer: Any = None,
        block_fn: Any = Block,
        qk_scale: float | None = None,
        **others: Any,
    ) -> None:
        super().__init__()
        _only_usual(others)
        only("global_pool", global_pool, *_POOLS)
        only("weight_init", weight_init, "", "reset", "skip")
        only("pos_embed", pos_embed, "learn", "", "none")
        if not class_token and global_pool == "token":
            msg = "Token pooling needs the class token."
            raise AssertionError(msg)
        pools = global_pool in ("avg", "avgmax", "max") if fc_norm is None else fc_norm
        norm_layer, act_layer = norm_layer or _NORM, act_layer or torch_nn.GELU
        self.num_classes, self.in_chans, self.global_pool = num_classes, in_chans, global_pool
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.num_prefix_tokens = int(class_token) + reg_tokens
        self.num_reg_tokens, self.has_class_token = reg_tokens, class_token
        self.no_embed_class, self.pool_include_prefix = no_embed_class, pool_include_prefix
        self.grad_checkpointing = False
        without = {"bias": False} if pre_norm else {}
        self.patch_embed = embed_layer(
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            embed_dim=embed_dim,
            **without,
        )
        patches = self.patch_embed.num_patches
        length = patches + (0 if no_embed_class else self.num_prefix_tokens)
        self.cls_token = _tokens(1, embed_dim) if class_token else None
        self.reg_token = _tokens(reg_tokens, embed_dim) if reg_tokens else None
        self.pos_embed = _tokens(length, embed_dim) if pos_embed == "learn" else None
        self.pos_drop = torch_nn.Dropout(pos_drop_rate)
        self.norm_pre = norm_layer(embed_dim) if pre_norm else nn.Identity()
        settings = {
            "dim": embed_dim,
            "num_heads": num_heads,
            "mlp_ratio": mlp_ratio,
            "qkv_bias": qkv_bias,
            "attn_drop": attn_drop_rate,
            "norm_layer": norm_layer,
            "act_layer": act_layer,
        }
        rarer = {
            "qk_norm": (qk_norm, False),
            "scale_attn_norm": (scale_attn_norm, False),
            "scale_mlp_norm": (scale_mlp_norm, False),
            "proj_bias": (proj_bias, True),
            "proj_drop": (proj_drop_rate, 0.0),
            "init_values": (init_values, None),
            "qk_scale": (qk_scale, None),
        }
        settings |= {name: given for name, (given, usual) in rarer.items() if given != usual}
        rates = [drop_path_rate * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.SequentialCell([block_fn(**settings, drop_path=rate) for rate in rates])
        self.norm = norm_layer(embed_dim) if final_norm and not pools else nn.Identity()
        self.fc_norm = norm_layer(embed_dim) if final_norm and pools else nn.Identity()
        self.head_drop = torch_nn.Dropout(drop_rate)
        self.head = _head(embed_dim, num_classes)
        self.fix_init = fix_init
        if weight_init != "skip":
            self.init_weights()

    def init_weights(self, mode: str = "") -> None:
        """Give every Parameter the values that timm starts from; other random numbers."""
        only("mode", mode, "", "reset")
        if self.pos_embed is not None:
            inits.trunc_normal_(self.pos_embed, std=0.02)
        for token in (self.cls_token, self.reg_token):
            if token is not None:
                inits.normal_(token, std=1e-6)
        for _, cell in self.cells_and_names():
            self._init_weights(cell)
        if self.fix_init:
            self.fix_init_weight()

    def fix_init_weight(self) -> None:
        """Divide what a block adds by a factor that grows with its depth."""
        for place, block in enumerate(self.blocks):
            scale = math.sqrt(2.0 * (place + 1))
            for layer in (block.attn.proj, block.mlp.fc2):
                ops.assign(layer.weight, layer.weight / scale)

    def _init_weights(self, m: Any) -> None:
        """Give the weights of one layer the values that timm starts from."""
        if isinstance(m, nn.Dense):
            inits.trunc_normal_(m.weight, std=0.02)
            if m.bias is not None:
                inits.zeros_(m.bias)

    def no_weight_decay(self) -> set[str]:
        """Return the names of Parameters that no decay is for."""
        return {"pos_embed", "cls_token", "reg_token", "dist_token"}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Take the setting; what blocks keep of a forward pass stays the same."""
        self.grad_checkpointing = enable

    def get_classifier(self) -> Any:
        """Return the head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Put another head there, and another way of pooling."""
        self.num_classes = num_classes
        if global_pool is not None:
            only("global_pool", global_pool, *_POOLS)
            self.global_pool = global_pool
        self.head = _head(self.embed_dim, num_classes).set_train(self.training)

    def _pos_embed(self, x: Any) -> Any:
        """Return rows of patches with their tokens in front, and what says where they are."""
        first = [one for one in (self.cls_token, self.reg_token) if one is not None]
        first = [one.expand((x.shape[0], -1, -1)) for one in first]
        if self.no_embed_class and self.pos_embed is not None:
            x = x + self.pos_embed
        if first:
            x = ops.cat([*first, x], 1)
        if self.pos_embed is None:
            return x
        return self.pos_drop(x if self.no_embed_class else x + self.pos_embed)

    def forward_features(self, x: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        """Return the rows of tokens behind all blocks."""
        x = self.norm_pre(self._pos_embed(self.patch_embed(x)))
        if attn_mask is None and not is_causal:
            return self.norm(self.blocks(x))
        for block in self.blocks:
            x = block(x, attn_mask=attn_mask, is_causal=is_causal)
        return self.norm(x)

    def pool(self, x: Any, pool_type: str | None = None) -> Any:
        """Return one row for each picture."""
        kind = self.global_pool if pool_type is None else pool_type
        if not kind:
            return x
        if kind == "token":
            return x[:, 0]
        if not self.pool_include_prefix:
            x = x[:, self.num_prefix_tokens :]
        if kind == "avg":
            return x.mean(1)
        return x.amax(1) if kind == "max" else 0.5 * (x.amax(1) + x.mean(1))

    def forward_head(self, x: Any, pre_logits: bool = False) -> Any:
        """Return scores, or what the head takes."""
        x = self.head_drop(self.fc_norm(self.pool(x)))
        return x if pre_logits else self.head(x)

    def construct(self, x: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        """Return scores of pictures.

        Of a network whose own ``forward_features`` returns (N, C), the head follows at once.
        """
        if attn_mask is None and not is_causal:
            x = self.forward_features(x)
        else:
            x = self.forward_features(x, attn_mask=attn_mask, is_causal=is_causal)
        return self.head(x) if x.ndim == 2 else self.forward_head(x)


def _head(into: int, out: int) -> Any:
    return torch_nn.Linear(into, out) if out > 0 else nn.Identity()


def _tokens(count: int, dim: int) -> Any:
    return ms.Parameter(ops.zeros((1, count, dim), ms.float32))


def _only_usual(others: dict[str, Any]) -> None:
    """Raise where an argument of some version asks for what is not here."""
    for name, value in others.items():
        if name in ("hybrid_backbone", "representation_size", "embed_norm_layer"):
            only(name, value, None)
        elif name in ("distilled", "dynamic_img_size", "dynamic_img_pad"):
            only(name, value, False)
        elif name == "patch_drop_rate":
            only(name, value, 0.0)
        elif name == "mlp_layer":
            only(name, value, Mlp)
        elif name == "attn_layer":
            only(name, value, Attention)
        else:
            msg = f"VisionTransformer.__init__() got an unexpected keyword argument {name!r}"
            raise TypeError(msg)


def init_weights_vit_timm(module: Any, name: str = "") -> None:
    """Give one layer's weights the values that timm starts from."""
    del name
    if isinstance(module, nn.Dense):
        inits.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            inits.zeros_(module.bias)


def init_vit_weights(
    module: Any, name: str = "", head_bias: float = 0.0, jax_impl: bool = False
) -> None:
    """Give one layer's weights the values that timm 0.5 starts from."""
    if isinstance(module, nn.Dense):
        _init_linear(module, name, head_bias, jax_impl)
    elif jax_impl and isinstance(module, nn.Conv2d):
        lecun_normal_(module.weight)
        if module.bias is not None:
            inits.zeros_(module.bias)
    elif isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d)):
        for word, fill in (("beta", inits.zeros_), ("gamma", inits.ones_)):
            if (held := getattr(module, word)) is not None:
                fill(held)


def _init_linear(module: Any, name: str, head_bias: float, jax_impl: bool) -> None:
    if name.startswith("head"):
        inits.zeros_(module.weight)
        inits.constant_(module.bias, head_bias)
        return
    if name.startswith("pre_logits"):
        lecun_normal_(module.weight)
    elif jax_impl:
        inits.xavier_uniform_(module.weight)
    else:
        inits.trunc_normal_(module.weight, std=0.02)
    if module.bias is None:
        return
    if jax_impl and "mlp" in name and not name.startswith("pre_logits"):
        inits.normal_(module.bias, std=1e-6)
    else:
        inits.zeros_(module.bias)


def resample_abs_pos_embed(
    posemb: Any,
    new_size: Any,
    old_size: Any = None,
    num_prefix_tokens: int = 1,
    interpolation: str = "bicubic",
    antialias: bool = True,
    verbose: bool = False,
) -> Any:
    """Return what says where patches are, for a grid of another size.

    Raises:
        NotImplementedError: ``antialias`` where the size changes.
    """
    del verbose
    is_long = posemb.shape[1] == new_size[0] * new_size[1] + num_prefix_tokens
    if is_long and new_size[0] == new_size[1] and old_size is None:
        return posemb
    if is_long and old_size is not None and tuple(old_size) == tuple(new_size):
        return posemb
    only("antialias", antialias, False)
    if old_size is None:
        side = int(math.sqrt(posemb.shape[1] - num_prefix_tokens))
        old_size = side, side
    first, rest = posemb[:, :num_prefix_tokens], posemb[:, num_prefix_tokens:]
    dim = posemb.shape[-1]
    grid = rest.astype(ms.float32).reshape((1, old_size[0], old_size[1], -1)).permute(0, 3, 1, 2)
    grid = interpolate(grid, size=tuple(new_size), mode=interpolation)
    rest = grid.permute(0, 2, 3, 1).reshape((1, -1, dim)).astype(posemb.dtype)
    return ops.cat([first, rest], 1) if num_prefix_tokens else rest


def resize_pos_embed(
    posemb: Any,
    posemb_new: Any,
    num_prefix_tokens: int = 1,
    gs_new: Any = (),
    interpolation: str = "bicubic",
    antialias: bool = False,
) -> Any:
    """Return what says where patches are, at the size of another network's."""
    old, new = (int(math.sqrt(one.shape[1] - num_prefix_tokens)) for one in (posemb, posemb_new))
    sizes = gs_new or (new, new), (old, old)
    return resample_abs_pos_embed(
        posemb, *sizes, num_prefix_tokens, interpolation, antialias=antialias
    )
