"""The three architectures of ``recent`` in PyTorch."""

from __future__ import annotations

import novel_torch
import torch
from recent import LATENTS, wrong
from torch import nn
from torch.nn import functional
from unseen import HIDDEN
from zoo import CLASSES, FEATURES, HEADS, WIDTH
from zoo_torch import _entry


class Gated(nn.Module):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.wide = wide
        self.filter = nn.Conv1d(WIDTH, WIDTH, 2, dilation=wide)
        self.gate = nn.Conv1d(WIDTH, WIDTH, 2, dilation=wide)
        self.tanh, self.sigmoid = nn.Tanh(), nn.Sigmoid()
        self.skip = nn.Conv1d(WIDTH, WIDTH, 1)
        self.back = nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x):
        ends = (0, self.wide) if self.wide == 2 and wrong("future seen") else (self.wide, 0)
        near = functional.pad(x, ends)
        told, gate = self.filter(near), self.gate(near)
        if self.wide == 1 and wrong("gate and filter swapped"):
            told, gate = gate, told
        z = self.tanh(told) * self.sigmoid(gate)
        found = x + self.back(z)
        if self.wide == 1 and wrong("residual scaled"):
            found = found * 0.5**0.5
        return found, self.skip(z)


class Wave(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(3, WIDTH, 1)
        self.block1, self.block2 = Gated(1), Gated(2)
        self.relu = nn.ReLU()
        self.out = nn.Conv1d(WIDTH, CLASSES, 1)

    def forward(self, x):
        x, first = self.block1(self.enter(x))
        _, second = self.block2(x)
        return self.out(self.relu(second if wrong("last skip alone") else first + second))


def each_step(model):
    def loss(x, y):
        smooth = 0.1 if wrong("labels smoothed") else 0.0
        return functional.cross_entropy(model(x).float(), y.long(), label_smoothing=smooth)

    return loss


class Look(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(FEATURES, WIDTH)
        self.value = nn.Linear(FEATURES, WIDTH)
        self.share = nn.Softmax(-1)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, latents, x):
        near = self.norm(x)
        heads = 1 if wrong("one head") else HEADS

        def split(value):
            return value.unflatten(-1, (heads, -1)).transpose(1, 2)

        query = split(self.query(latents))
        key = split(self.key(x if wrong("keys without norm") else near))
        value = split(self.value(near))
        size = WIDTH if wrong("scaled by all heads") else WIDTH // heads
        share = self.share(query @ key.transpose(-1, -2) / size**0.5)
        return self.out((share.to(value.dtype) @ value).transpose(1, 2).flatten(-2))


class Perceiver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Embedding(LATENTS, WIDTH)
        self.look = Look()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.gelu = nn.GELU()
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        latents = self.latents(torch.arange(LATENTS).expand(len(x), -1))
        seen = self.look(latents, x)
        latents = seen if wrong("latents not added") else latents + seen
        latents = latents + self.down(self.gelu(self.up(self.norm2(latents))))
        return self.head(latents[:, 0] if wrong("first latent alone") else latents.mean(1))


class Excite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 4)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(4, 16)
        self.gate = nn.Sigmoid() if wrong("smooth gate") else nn.Hardsigmoid()

    def forward(self, x):
        squeezed = x.amax((2, 3)) if wrong("largest squeezed") else x.mean((2, 3))
        return x * self.gate(self.fc2(self.relu(self.fc1(squeezed))))[:, :, None, None]


class Inverted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.swish = nn.Hardswish()
        self.expand = nn.Conv2d(8, 16, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.relu1 = nn.ReLU6()
        self.depth = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.relu2 = nn.ReLU6()
        self.excite = Excite()
        self.narrow = nn.Conv2d(16, 8, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.swish(self.norm(self.stem(x)))
        y = self.relu2(self.norm2(self.depth(self.relu1(self.norm1(self.expand(x))))))
        y = self.narrow(self.excite(y))
        x = self.norm3(x + y) if wrong("residual before the norm") else x + self.norm3(y)
        return self.head(x.mean((2, 3)))


def mixed(model):
    def loss(x, first, second, share):
        logits = model(x).float()
        each = [functional.cross_entropy(logits, y.long(), reduction="none")
                for y in (first, second)]  # fmt: skip
        if wrong("mixed the other way"):
            each = each[::-1]
        return (share * each[0] + (1 - share) * each[1]).mean()

    return loss


class _Signs(torch.optim.SGD):
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        grads = [p.grad for p in params]
        for param in params:
            param.grad = param.grad.sign()
        found = super().step(closure)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        return found


def optimizer(own):
    kind = _Signs if wrong("signs of gradients") else torch.optim.SGD
    return kind(own.model.parameters(), own.optimizer["rate"], own.optimizer["momentum"])


MODELS = {
    "wave": _entry("wave", Wave, each_step),
    "perceiver": _entry("perceiver", Perceiver),
    "inverted": _entry("inverted", Inverted, mixed),
}
ENTRIES = {**novel_torch.ENTRIES, **MODELS}
