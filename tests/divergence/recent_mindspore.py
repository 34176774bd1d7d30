"""The three architectures of ``recent`` in MindSpore."""

from __future__ import annotations

import mindspore as ms
import novel_mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from recent import LATENTS, wrong
from unseen import HIDDEN
from zoo import CLASSES, EPS, FEATURES, HEADS, WIDTH
from zoo_mindspore import _entry, conv


def conv1(inside, outside, kernel, wide=1):
    return nn.Conv1d(inside, outside, kernel, pad_mode="valid", dilation=wide, has_bias=True)


def batch_norm(channels):
    return nn.BatchNorm2d(channels, eps=EPS, momentum=0.9)


class Gated(nn.Cell):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.wide = wide
        self.filter = conv1(WIDTH, WIDTH, 2, wide)
        self.gate = conv1(WIDTH, WIDTH, 2, wide)
        self.tanh, self.sigmoid = nn.Tanh(), nn.Sigmoid()
        self.skip = conv1(WIDTH, WIDTH, 1)
        self.back = conv1(WIDTH, WIDTH, 1)

    def construct(self, x):
        ends = (0, self.wide) if self.wide == 2 and wrong("future seen") else (self.wide, 0)
        near = ops.pad(x, ends)
        told, gate = self.filter(near), self.gate(near)
        if self.wide == 1 and wrong("gate and filter swapped"):
            told, gate = gate, told
        z = self.tanh(told) * self.sigmoid(gate)
        found = x + self.back(z)
        if self.wide == 1 and wrong("residual scaled"):
            found = found * 0.5**0.5
        return found, self.skip(z)


class Wave(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.enter = conv1(3, WIDTH, 1)
        self.block1, self.block2 = Gated(1), Gated(2)
        self.relu = nn.ReLU()
        self.out = conv1(WIDTH, CLASSES, 1)

    def construct(self, x):
        x, first = self.block1(self.enter(x))
        _, second = self.block2(x)
        return self.out(self.relu(second if wrong("last skip alone") else first + second))


def each_step(model):
    def loss(x, y):
        smooth = 0.1 if wrong("labels smoothed") else 0.0
        logits = model(x).astype(ms.float32).swapaxes(1, 2).reshape(-1, CLASSES)
        return ops.cross_entropy(logits, y.reshape(-1), label_smoothing=smooth)

    return loss


class Look(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((FEATURES,), epsilon=EPS)
        self.query = nn.Dense(WIDTH, WIDTH)
        self.key = nn.Dense(FEATURES, WIDTH)
        self.value = nn.Dense(FEATURES, WIDTH)
        self.share = nn.Softmax(-1)
        self.out = nn.Dense(WIDTH, WIDTH)

    def construct(self, latents, x):
        near = self.norm(x)
        heads = 1 if wrong("one head") else HEADS

        def split(value):
            return value.reshape(*value.shape[:2], heads, WIDTH // heads).swapaxes(1, 2)

        query = split(self.query(latents))
        key = split(self.key(x if wrong("keys without norm") else near))
        value = split(self.value(near))
        size = WIDTH if wrong("scaled by all heads") else WIDTH // heads
        share = self.share(ops.matmul(query, key.swapaxes(-1, -2)) / size**0.5)
        made = ops.matmul(share.astype(value.dtype), value).swapaxes(1, 2)
        return self.out(made.reshape(*made.shape[:2], WIDTH))


class Perceiver(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Embedding(LATENTS, WIDTH)
        self.look = Look()
        self.norm2 = nn.LayerNorm((WIDTH,), epsilon=EPS)
        self.up = nn.Dense(WIDTH, HIDDEN)
        self.gelu = nn.GELU(approximate=False)
        self.down = nn.Dense(HIDDEN, WIDTH)
        self.head = nn.Dense(WIDTH, CLASSES)

    def construct(self, x):
        numbers = np.broadcast_to(np.arange(LATENTS, dtype=np.int32), (len(x), LATENTS))
        latents = self.latents(Tensor(numbers.copy()))
        seen = self.look(latents, x)
        latents = seen if wrong("latents not added") else latents + seen
        latents = latents + self.down(self.gelu(self.up(self.norm2(latents))))
        alone = wrong("first latent alone")
        return self.head(latents[:, 0] if alone else latents.mean(axis=1))


class Excite(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(16, 4)
        self.relu = nn.ReLU()
        self.fc2 = nn.Dense(4, 16)
        self.gate = nn.Sigmoid() if wrong("smooth gate") else nn.HSigmoid()

    def construct(self, x):
        squeezed = ops.amax(x, (2, 3)) if wrong("largest squeezed") else x.mean(axis=(2, 3))
        scale = self.gate(self.fc2(self.relu(self.fc1(squeezed))))
        return x * scale.expand_dims(-1).expand_dims(-1)


class Inverted(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 8, 3, 2, bias=False)
        self.norm = batch_norm(8)
        self.swish = nn.HSwish()
        self.expand = conv(8, 16, 1, bias=False)
        self.norm1 = batch_norm(16)
        self.relu1 = nn.ReLU6()
        self.depth = conv(16, 16, 3, group=16, bias=False)
        self.norm2 = batch_norm(16)
        self.relu2 = nn.ReLU6()
        self.excite = Excite()
        self.narrow = conv(16, 8, 1, bias=False)
        self.norm3 = batch_norm(8)
        self.head = nn.Dense(8, CLASSES)

    def construct(self, x):
        x = self.swish(self.norm(self.stem(x)))
        y = self.relu2(self.norm2(self.depth(self.relu1(self.norm1(self.expand(x))))))
        y = self.narrow(self.excite(y))
        x = self.norm3(x + y) if wrong("residual before the norm") else x + self.norm3(y)
        return self.head(x.mean(axis=(2, 3)))


def mixed(model):
    def loss(x, first, second, share):
        logits = model(x).astype(ms.float32)
        each = [ops.cross_entropy(logits, y, reduction="none") for y in (first, second)]
        if wrong("mixed the other way"):
            each = each[::-1]
        return (share * each[0] + (1 - share) * each[1]).mean()

    return loss


class _Signs(nn.Momentum):
    def construct(self, gradients):
        return super().construct(tuple(ops.sign(grad) for grad in gradients))


def optimizer(own):
    kind = _Signs if wrong("signs of gradients") else nn.Momentum
    return kind(own.model.trainable_params(), own.optimizer["rate"], own.optimizer["momentum"])


MODELS = {
    "wave": _entry("wave", Wave, each_step),
    "perceiver": _entry("perceiver", Perceiver),
    "inverted": _entry("inverted", Inverted, mixed),
}
ENTRIES = {**novel_mindspore.ENTRIES, **MODELS}
