"""The three architectures of ``fresh`` in PyTorch."""

from __future__ import annotations

import newer_torch
import torch
from fresh import QUERIES, TARGETS
from torch import nn
from torch.nn import functional
from unseen import HIDDEN
from zoo import CLASSES, EPS, VOCABULARY, WIDTH
from zoo_torch import _entry, classify_weighted


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(6)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.leaky = nn.LeakyReLU(0.1)
        self.out = nn.Linear(8, WIDTH)
        self.tanh = nn.Tanh()

    def forward(self, x):
        x = self.pool1(self.relu1(self.norm1(self.conv1(x))))
        return self.tanh(self.out(self.leaky(self.conv2(x)).mean((2, 3))))


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = Tower()
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x, other):
        return self.head((self.tower(x) - self.tower(other)).abs())


def alike(model):
    return lambda x, other, y: functional.binary_cross_entropy_with_logits(
        model(x, other).float(), y
    )


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
        return (wide * self.scale.float()).to(x.dtype)


class SwiGlu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.silu = nn.SiLU()
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down(self.silu(self.gate(x)) * self.up(x))


class Attend(nn.Module):
    """A few learned queries look at all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.asked = nn.Parameter(torch.zeros(QUERIES, WIDTH))
        self.norm = RmsNorm()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.share = nn.Softmax(-1)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = RmsNorm()
        self.mlp = SwiGlu()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens):
        x = self.norm(self.embed(tokens))
        asked = self.query(self.asked).unsqueeze(0)
        scores = asked @ self.key(x).transpose(1, 2) / WIDTH**0.5
        share = self.share(scores)
        seen = self.out(share.to(x.dtype) @ self.value(x))
        return self.head((seen + self.mlp(self.norm2(seen))).mean(1))


class Squeeze(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2)
        self.norm = nn.GroupNorm(2, 8)
        self.swish = nn.Hardswish()
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.shrink = nn.Linear(8, 4)
        self.relu = nn.ReLU()
        self.grow = nn.Linear(4, 8)
        self.gate = nn.Sigmoid()
        self.pool = nn.AvgPool2d(2)
        self.mix = nn.Conv2d(8, 6, 1)
        self.head = nn.Linear(6, TARGETS)

    def forward(self, x):
        x = self.depth(self.swish(self.norm(self.stem(x))))
        share = self.gate(self.grow(self.relu(self.shrink(x.mean((2, 3))))))
        x = self.pool(x * share[:, :, None, None])
        return self.head(self.mix(x).mean((2, 3)))


def measured(model):
    return lambda x, y: functional.smooth_l1_loss(model(x).float(), y)


MODELS = {
    "twins": _entry("twins", Twins, alike),
    "attend": _entry("attend", Attend, classify_weighted),
    "squeeze": _entry("squeeze", Squeeze, measured),
}
ENTRIES = {**newer_torch.ENTRIES, **MODELS}
