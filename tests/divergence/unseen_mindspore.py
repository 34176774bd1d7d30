"""The five architectures of ``unseen`` in MindSpore."""

from __future__ import annotations

from collections import OrderedDict

import mindspore as ms
import zoo_mindspore
from mindspore import nn, ops
from unseen import HIDDEN, LATENT, PATCHES
from zoo import CLASSES, EPS, FEATURES, WIDTH
from zoo_mindspore import _entry, classify, conv


class MixerBlock(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm((WIDTH,), epsilon=EPS)
        self.across = nn.Dense(PATCHES, HIDDEN)
        self.gelu1 = nn.GELU(approximate=False)
        self.back = nn.Dense(HIDDEN, PATCHES)
        self.norm2 = nn.LayerNorm((WIDTH,), epsilon=EPS)
        self.up = nn.Dense(WIDTH, HIDDEN)
        self.gelu2 = nn.GELU(approximate=False)
        self.down = nn.Dense(HIDDEN, WIDTH)

    def construct(self, x):
        y = self.norm1(x).swapaxes(1, 2)
        x = x + self.back(self.gelu1(self.across(y))).swapaxes(1, 2)
        return x + self.down(self.gelu2(self.up(self.norm2(x))))


class Mixer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4, "valid", has_bias=True)
        self.block1 = MixerBlock()
        self.block2 = MixerBlock()
        self.norm = nn.LayerNorm((WIDTH,), epsilon=EPS)
        self.head = nn.Dense(WIDTH, CLASSES)

    def construct(self, x):
        x = self.patches(x).flatten(start_dim=2).swapaxes(1, 2)
        return self.head(self.norm(self.block2(self.block1(x))).mean(axis=1))


class Vae(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Dense(FEATURES, HIDDEN)
        self.relu1 = nn.ReLU()
        self.mean = nn.Dense(HIDDEN, LATENT)
        self.spread = nn.Dense(HIDDEN, LATENT)
        self.leave = nn.Dense(LATENT, HIDDEN)
        self.relu2 = nn.ReLU()
        self.out = nn.Dense(HIDDEN, FEATURES)

    def construct(self, x, noise):
        hidden = self.relu1(self.enter(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        z = mean + noise.astype(mean.dtype) * ops.exp(0.5 * spread)
        return self.out(self.relu2(self.leave(z))), mean, spread


def evidence_bound(model, *, weight=1.0, kl=lambda x: x.sum(-1).mean()):
    def loss(x, noise):
        made, mean, spread = (value.astype(ms.float32) for value in model(x, noise))
        apart = 0.5 * (ops.square(mean) + ops.exp(spread) - 1 - spread)
        return ops.square(made - x).mean() + weight * kl(apart)

    return loss


def conv_norm(inside: int, outside: int) -> nn.SequentialCell:
    norm = nn.BatchNorm2d(outside, eps=EPS, momentum=0.9)
    return nn.SequentialCell(OrderedDict(conv=conv(inside, outside, 3), norm=norm, relu=nn.ReLU()))


class BnUNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = conv_norm(3, 4)
        self.pool1 = nn.MaxPool2d(2, 2)
        self.down2 = conv_norm(4, 8)
        self.pool2 = nn.MaxPool2d(2, 2)
        self.bottom = conv_norm(8, 8)
        self.up2 = nn.Conv2dTranspose(8, 8, 2, 2, "valid", has_bias=True)
        self.merge2 = conv_norm(16, 8)
        self.up1 = nn.Conv2dTranspose(8, 4, 2, 2, "valid", has_bias=True)
        self.merge1 = conv_norm(8, 4)
        self.head = conv(4, CLASSES, 1)

    def construct(self, x):
        first = self.down1(x)
        second = self.down2(self.pool1(first))
        x = self.up2(self.bottom(self.pool2(second)))
        x = self.up1(self.merge2(ops.cat((second, x), axis=1)))
        return self.head(self.merge1(ops.cat((first, x), axis=1)))


class Detect(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8)
        self.conv = conv(8, 8, 3, 2)
        self.leaky = nn.LeakyReLU(0.1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.scores = nn.Dense(8, CLASSES)
        self.hidden = nn.Dense(8, HIDDEN)
        self.silu = nn.SiLU()
        self.box = nn.Dense(HIDDEN, 4)

    def construct(self, x):
        x = self.pool(self.leaky(self.conv(self.stem(x)))).flatten(start_dim=1)
        return self.scores(x), self.box(self.silu(self.hidden(x)))


def two_losses(model, *, weight=2.0):
    def loss(x, y, boxes):
        scores, box = (value.astype(ms.float32) for value in model(x))
        near = ops.smooth_l1_loss(box, boxes, reduction="mean")
        return ops.cross_entropy(scores, y) + weight * near

    return loss


MODELS = {
    "mixer": _entry("mixer", Mixer, classify),
    "vae": _entry("vae", Vae, evidence_bound),
    "bnunet": _entry("bnunet", BnUNet, classify),
    "detect": _entry("detect", Detect, two_losses),
}
"""Without the model of Conv1d: its BatchNorm1d takes no (batch, channels, length)."""

ENTRIES = {**zoo_mindspore.ZOO, **MODELS}
