"""The three architectures of ``fresh`` in MindSpore."""

from __future__ import annotations

import mindspore as ms
import newer_mindspore
import numpy as np
from fresh import QUERIES, TARGETS
from mindspore import nn, ops
from unseen import HIDDEN
from zoo import CLASSES, EPS, VOCABULARY, WIDTH
from zoo_mindspore import _entry, classify_weighted, conv


class Tower(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv(3, 6, 3)
        self.norm1 = nn.BatchNorm2d(6, eps=EPS, momentum=0.9)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 8, 3, pad_mode="valid", has_bias=True)
        self.leaky = nn.LeakyReLU(0.1)
        self.out = nn.Dense(8, WIDTH)
        self.tanh = nn.Tanh()

    def construct(self, x):
        x = self.pool1(self.relu1(self.norm1(self.conv1(x))))
        return self.tanh(self.out(self.leaky(self.conv2(x)).mean(axis=(2, 3))))


class Twins(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.tower = Tower()
        self.head = nn.Dense(WIDTH, 1)

    def construct(self, x, other):
        return self.head(ops.abs(self.tower(x) - self.tower(other)))


def alike(model):
    def loss(x, other, y):
        logits = model(x, other).astype(ms.float32)
        ones = ops.ones_like(logits)
        return ops.binary_cross_entropy_with_logits(logits, y, ones, ones)

    return loss


class RmsNorm(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.scale = ms.Parameter(ms.Tensor(np.ones(WIDTH, np.float32)), name="scale")

    def construct(self, x):
        wide = x.astype(ms.float32)
        wide = wide * ops.rsqrt(ops.square(wide).mean(axis=-1, keep_dims=True) + EPS)
        return (wide * self.scale.astype(ms.float32)).astype(x.dtype)


class SwiGlu(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Dense(WIDTH, HIDDEN, has_bias=False)
        self.silu = nn.SiLU()
        self.up = nn.Dense(WIDTH, HIDDEN, has_bias=False)
        self.down = nn.Dense(HIDDEN, WIDTH, has_bias=False)

    def construct(self, x):
        return self.down(self.silu(self.gate(x)) * self.up(x))


class Attend(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.asked = ms.Parameter(ms.Tensor(np.zeros((QUERIES, WIDTH), np.float32)), name="asked")
        self.norm = RmsNorm()
        self.query = nn.Dense(WIDTH, WIDTH)
        self.key = nn.Dense(WIDTH, WIDTH)
        self.value = nn.Dense(WIDTH, WIDTH)
        self.share = nn.Softmax(-1)
        self.out = nn.Dense(WIDTH, WIDTH)
        self.norm2 = RmsNorm()
        self.mlp = SwiGlu()
        self.head = nn.Dense(WIDTH, CLASSES)

    def construct(self, tokens):
        x = self.norm(self.embed(tokens))
        asked = self.query(self.asked).expand_dims(0)
        scores = ops.matmul(asked, self.key(x).swapaxes(1, 2)) / WIDTH**0.5
        share = self.share(scores)
        seen = self.out(ops.matmul(share.astype(x.dtype), self.value(x)))
        return self.head((seen + self.mlp(self.norm2(seen))).mean(axis=1))


class Squeeze(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, "valid", has_bias=True)
        self.norm = nn.GroupNorm(2, 8, eps=EPS)
        self.swish = nn.HSwish()
        self.depth = conv(8, 8, 3, group=8)
        self.shrink = nn.Dense(8, 4)
        self.relu = nn.ReLU()
        self.grow = nn.Dense(4, 8)
        self.gate = nn.Sigmoid()
        self.pool = nn.AvgPool2d(2, 2)
        self.mix = conv(8, 6, 1)
        self.head = nn.Dense(6, TARGETS)

    def construct(self, x):
        x = self.depth(self.swish(self.norm(self.stem(x))))
        share = self.gate(self.grow(self.relu(self.shrink(x.mean(axis=(2, 3))))))
        x = self.pool(x * share.expand_dims(-1).expand_dims(-1))
        return self.head(self.mix(x).mean(axis=(2, 3)))


def measured(model):
    return lambda x, y: ops.smooth_l1_loss(model(x).astype(ms.float32), y, reduction="mean")


MODELS = {
    "twins": _entry("twins", Twins, alike),
    "attend": _entry("attend", Attend, classify_weighted),
    "squeeze": _entry("squeeze", Squeeze, measured),
}
ENTRIES = {**newer_mindspore.ENTRIES, **MODELS}
