"""Scripts whose networks are made of timm's layers; for ``record_timm.py``, too."""

from __future__ import annotations

__all__ = ["HEADS", "LAYERS", "OLDER", "PADDED", "TRANSFORMERS", "WINDOWS"]

_HEAD = """
from functools import partial
import torch
from torch import nn
import torch.nn.functional as F
made, names = [], []

def filled(net):
    for name, p in net.named_parameters():
        start = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        values = torch.sin(torch.arange(p.numel()).float() * 0.7 + len(name))
        p.data.copy_(values.view(p.shape) * 0.2 + start)
    return net

def train(net, x, *more):
    filled(net)
    names.append([name for name, _ in net.named_parameters()])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(2):
        out = net(x * (step + 1), *more)
        loss = (out * out).mean() + out.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.append(loss.item())
    for _, p in sorted(net.named_parameters(), key=lambda one: one[0]):
        made.append(float(p.detach().abs().sum()))

rows = torch.cos(torch.arange(2 * 5 * 8).float()).view(2, 5, 8)
picture = torch.cos(torch.arange(2 * 3 * 8 * 8).float()).view(2, 3, 8, 8)
"""

LAYERS = f"""{_HEAD}
from timm.models.layers import Mlp, PatchEmbed, LayerNorm2d, to_2tuple, to_3tuple, lecun_normal_
from timm.layers.mlp import ConvMlp
from timm.models.vision_transformer import Attention, Block, LayerScale

class Own(Attention):
    def __init__(self, dim, num_heads=2, **kwargs):
        super().__init__(dim, num_heads=num_heads, **kwargs)
        self.extra = nn.Parameter(torch.zeros(dim))
    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn = self.attn_drop((q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x)) + self.extra

def go():
    norm = partial(nn.LayerNorm, eps=1e-6)
    train(Mlp(8, 12, act_layer=nn.GELU, drop=0.0), rows)
    train(Mlp(8, hidden_features=12, out_features=4, norm_layer=norm, bias=(True, False)), rows)
    train(Mlp(3, 6, act_layer=nn.ReLU, use_conv=True), picture)
    train(ConvMlp(3, 6, 4, norm_layer=LayerNorm2d), picture)
    train(LayerNorm2d(3), picture)
    train(LayerScale(8, init_values=0.5), rows)
    train(PatchEmbed(8, 4, 3, 16), picture)
    train(PatchEmbed(img_size=(8, 8), patch_size=(4, 2), embed_dim=6, norm_layer=norm), picture)
    train(PatchEmbed(8, 4, embed_dim=6, flatten=False, bias=False), picture)
    train(PatchEmbed(None, 4, embed_dim=6, output_fmt="NHWC"), picture)
    train(Attention(8, num_heads=2, qkv_bias=True), rows)
    both = dict(qk_norm=True, scale_norm=True, norm_layer=norm)
    train(Attention(8, num_heads=2, gated=True, **both), rows)
    train(Attention(8, num_heads=2), rows, torch.tensor([[0.0, -1.0, 0.0, 0.5, -9.0]]))
    train(Attention(8, num_heads=4, attn_head_dim=3, dim_out=6), rows, None, True)
    train(Own(8, qkv_bias=True), rows)
    train(Block(8, 2, 2.0, qkv_bias=True, init_values=0.1), rows)
    train(Block(8, 2, qk_norm=True, scale_mlp_norm=True, norm_layer=norm, act_layer=nn.ReLU), rows)
    net = PatchEmbed(8, 4, 3, 16)
    made.append(list(net.grid_size) + [net.num_patches, net.feat_ratio()] + list(to_3tuple(2)))
    w = nn.Linear(256, 64).weight
    lecun_normal_(w)
    made.append([float(abs(w.std() * 16 - 1) < 0.05), float(w.abs().max() < 2 / 16 / 0.87)])
"""

TRANSFORMERS = f"""{_HEAD}
from timm.models.layers import trunc_normal_
from timm.models.registry import register_model
from timm.models.vision_transformer import VisionTransformer, resize_pos_embed, _cfg

class Distilled(VisionTransformer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.dist_token = nn.Parameter(torch.zeros(1, 1, self.embed_dim))
        count = self.patch_embed.num_patches
        self.pos_embed = nn.Parameter(torch.zeros(1, count + 2, self.embed_dim))
        self.head_dist = nn.Linear(self.embed_dim, self.num_classes)
        trunc_normal_(self.dist_token, std=.02)
        trunc_normal_(self.pos_embed, std=.02)
        self.head_dist.apply(self._init_weights)
    def forward_features(self, x):
        B = x.shape[0]
        x = self.patch_embed(x)
        first = self.cls_token.expand(B, -1, -1)
        x = torch.cat((first, self.dist_token.expand(B, -1, -1), x), dim=1)
        x = self.pos_drop(x + self.pos_embed)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return x[:, 0], x[:, 1]
    def forward(self, x):
        x, other = self.forward_features(x)
        return self.head(x) + self.head_dist(other) / 2

@register_model
def small(pretrained=False, **kwargs):
    for name in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
        kwargs.pop(name, None)
    net = Distilled(patch_size=4, embed_dim=8, depth=2, num_heads=2, mlp_ratio=2, qkv_bias=True,
                    norm_layer=partial(nn.LayerNorm, eps=1e-6), **kwargs)
    net.default_cfg = _cfg()
    return net

def net(**kwargs):
    return VisionTransformer(img_size=8, patch_size=4, num_classes=3, embed_dim=8, depth=2,
                             num_heads=2, **kwargs)

def go():
    train(net(), picture)
    train(net(global_pool="avg", qkv_bias=False, init_values=0.1), picture)
    train(net(global_pool="max", class_token=False, no_embed_class=True), picture)
    train(net(global_pool="avgmax", reg_tokens=2, pool_include_prefix=True, fc_norm=False), picture)
    train(net(global_pool="", pre_norm=True, pos_embed="none", act_layer=nn.ReLU), picture)
    train(net(qk_norm=True, scale_attn_norm=True, norm_layer=nn.LayerNorm, fix_init=True), picture)
    train(net(final_norm=False, reg_tokens=1, no_embed_class=True, weight_init="skip"), picture)
    train(small(img_size=8, num_classes=3), picture)
    other = filled(net(drop_path_rate=0.3)).eval()
    other.reset_classifier(5, "avg")
    made.append(filled(other)(picture).detach().view(-1).tolist())
    made.append(other.forward_features(picture).detach().abs().sum().item())
    made.append(other.blocks[1].drop_path1.drop_prob)
    made.append(len(other.no_weight_decay()))
    places = resize_pos_embed(filled(net()).pos_embed, torch.zeros(1, 10, 8))
    made.append(places.detach().view(-1).tolist())
    started = net()
    made.append(float(started.head.bias.abs().sum()))
    made.append(float(0.005 < started.head.weight.std() < 0.04))
"""

OLDER = f"""{_HEAD}
import timm.models.vision_transformer
from timm.models.vision_transformer import Block, PatchEmbed

assert timm.__version__ == "0.3.2"  # version check

class Pooled(timm.models.vision_transformer.VisionTransformer):
    def __init__(self, pooled=False, **kwargs):
        super(Pooled, self).__init__(**kwargs)
        self.pooled = pooled
        if self.pooled:
            self.fc_norm = kwargs["norm_layer"](kwargs["embed_dim"])
            del self.norm
    def forward_features(self, x):
        B = x.shape[0]
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(B, -1, -1), x), dim=1) + self.pos_embed
        x = self.pos_drop(x)
        for block in self.blocks:
            x = block(x)
        return self.fc_norm(x[:, 1:, :].mean(dim=1)) if self.pooled else self.norm(x)[:, 0]

class Auto(nn.Module):
    def __init__(self, norm_layer=nn.LayerNorm):
        super().__init__()
        self.patch_embed = PatchEmbed(8, 4, 3, 8)
        self.blocks = nn.ModuleList([
            Block(8, 2, 2.0, qkv_bias=True, qk_scale=scale, norm_layer=norm_layer)
            for scale in (None, 0.3)])
        w = self.patch_embed.proj.weight.data
        torch.nn.init.xavier_uniform_(w.view([w.shape[0], -1]))
        made.append(float(w.abs().max() < (6 / (48 + 8)) ** 0.5))
        made.append(float(w.abs().max() > (6 / (48 + 8)) ** 0.5 * 0.9))
    def forward(self, x):
        x = self.patch_embed(x)
        for block in self.blocks:
            x = block(x)
        return x

def go():
    train(Auto(), picture)
    settings = dict(img_size=8, patch_size=4, num_classes=3, embed_dim=8, depth=2, num_heads=2,
                    mlp_ratio=2, qkv_bias=True, norm_layer=partial(nn.LayerNorm, eps=1e-6))
    train(Pooled(**settings), picture)
    train(Pooled(pooled=True, **settings), picture)
    names.pop()  # a norm that is put in stands where timm has it now
"""

HEADS = f"""{_HEAD}
from timm.models.layers import ClassifierHead, SelectAdaptivePool2d, create_classifier
from timm.layers import select_adaptive_pool2d
from timm.models.cait import ClassAttn
from timm.models.fx_features import register_notrace_module, register_notrace_function
from timm.models.layers import _assert

@register_notrace_module
class Pooled(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.pool = SelectAdaptivePool2d(**kwargs)
        self.last = nn.Linear(3 * self.pool.feat_mult(), 2)
    def forward(self, x):
        _assert(x.ndim == 4, "no picture")
        return self.last(self.pool(x))

@register_notrace_function
def made_smaller(x, kind):
    return select_adaptive_pool2d(x, kind, 2).view(-1).tolist()

def go():
    train(ClassifierHead(3, 4), picture)
    train(ClassifierHead(3, 4, pool_type="catavgmax", drop_rate=0.0), picture)
    train(ClassifierHead(3, 4, "avgmax", use_conv=True), picture)
    made.append(ClassifierHead(3, 0, "")(picture).reshape(-1).tolist())
    for kind in ("fast", "avg", "max", "avgmax", "catavgmax"):
        train(Pooled(pool_type=kind, flatten=True), picture)
    for kind in ("avg", "max", "avgmax", "catavgmax"):
        made.append(made_smaller(picture, kind))
    pool, last = create_classifier(3, 2)
    made.append(filled(last)(pool(picture)).detach().view(-1).tolist())
    train(ClassAttn(8, 2, qkv_bias=True), rows)
"""

WINDOWS = f"""{_HEAD}
from timm.models.swin_transformer import SwinTransformerBlock, WindowAttention
from timm.models.swin_transformer import window_partition, window_reverse

flat = False  # True for timm up to 0.8
places = torch.cos(torch.arange(2 * 4 * 8 * 6).float()).view(2, 4, 8, 6)
rate = {{"drop": 0.0}} if flat else {{"proj_drop": 0.0}}

class Stage(nn.Module):
    def __init__(self, flat, size=(4, 8), **kwargs):
        super().__init__()
        self.flat = flat
        self.blocks = nn.Sequential(*[
            SwinTransformerBlock(6, size, 2, window_size=4, shift_size=by, **rate, **kwargs)
            for by in (0, 2)])
    def forward(self, x):
        return self.blocks(x.flatten(1, 2) if self.flat else x)

def go():
    train(Stage(flat), places)
    train(Stage(flat, (8, 8), mlp_ratio=2.0, qkv_bias=False),
          torch.cat((places, -places), 1))
    train(WindowAttention(6, 2, window_size=(2, 3)), places[:, :2, :3].reshape(2, 6, 6))
    cut = window_partition(places, 4 if flat else (4, 4))
    made.append(cut.reshape(-1).tolist())
    made.append(window_reverse(cut, 4 if flat else (4, 4), 4, 8).reshape(-1).tolist())
"""

PADDED = f"""{WINDOWS}
def go():
    train(Stage(flat, (6, 5)), torch.cat((places, places), 1)[:, :6, :5])
"""
