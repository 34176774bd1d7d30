"""The four architectures of ``novel`` in MindSpore, which sums no bfloat16 on CPU: float16."""

from __future__ import annotations

import fresh_mindspore
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from novel import COLOURS, STEERS, allowed, turns, wrong
from unseen import HIDDEN
from zoo import CLASSES, EPS, FEATURES, VOCABULARY, WIDTH
from zoo_mindspore import _entry, conv


def turned(x):
    cosine, sine = (Tensor(v) for v in turns(x.shape[1]))
    wide = x.astype(ms.float32)
    if wrong("rotary pairs side by side"):
        other = ops.stack([-wide[..., 1::2], wide[..., ::2]], -1).reshape(wide.shape)
    else:
        first, second = ops.chunk(wide, 2, -1)
        other = ops.cat((-second, first), axis=-1)
    return (wide * cosine + other * sine).astype(x.dtype)


class Attend(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.key = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.value = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.share = nn.Softmax(-1)
        self.out = nn.Dense(WIDTH, WIDTH)

    def construct(self, x):
        query, key = turned(self.query(x)), turned(self.key(x))
        if wrong("query and key swapped"):
            query, key = key, query
        scores = ops.matmul(query, key.swapaxes(1, 2)) / WIDTH**0.5
        scores = scores.astype(ms.float32) + Tensor(allowed(x.shape[1]))
        if wrong("softmax over queries"):
            share = self.share(scores.swapaxes(1, 2)).swapaxes(1, 2)
        else:
            share = self.share(scores)
        return self.out(ops.matmul(share.astype(x.dtype), self.value(x)))


class Rotary(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm1 = nn.LayerNorm((WIDTH,), epsilon=EPS)
        self.attend = Attend()
        self.norm2 = nn.LayerNorm((WIDTH,), epsilon=EPS)
        self.up = nn.Dense(WIDTH, HIDDEN)
        self.gelu = nn.GELU(approximate=True)
        self.down = nn.Dense(HIDDEN, WIDTH)
        self.head = nn.Dense(WIDTH, VOCABULARY)

    def construct(self, tokens):
        x = self.embed(tokens)
        near = self.norm1(x)
        x = (near if wrong("residual behind the norm") else x) + self.attend(near)
        return self.head(x + self.down(self.gelu(self.up(self.norm2(x)))))


def next_token(model):
    def loss(tokens, y, weights):
        logits = model(tokens).astype(ms.float32)
        if wrong("last token without loss"):
            logits, y = logits[:, :-1], y[:, :-1]
        flat = logits.reshape(-1, VOCABULARY)
        each = ops.cross_entropy(flat, y.reshape(-1), reduction="none").reshape(y.shape)
        return (each * weights.expand_dims(1)).mean()

    return loss


class Views(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Dense(FEATURES, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN, eps=EPS, momentum=0.9)
        self.relu = nn.ReLU()
        self.project = nn.Dense(HIDDEN, WIDTH)
        self.hidden = nn.Dense(WIDTH, HIDDEN)
        self.bent = nn.ELU()
        self.back = nn.Dense(HIDDEN, WIDTH)

    def construct(self, x, other):
        if wrong("both views in one batch"):
            seen = ops.chunk(self.seen(ops.cat((x, other))), 2)
        else:
            seen = self.seen(x), self.seen(other)
        told = [self.back(self.bent(self.hidden(z))) for z in seen]
        return seen[0], seen[1], told[0], told[1]

    def seen(self, x):
        if wrong("norm with running statistics"):
            self.norm.set_train(False)
        return self.project(self.relu(self.norm(self.enter(x))))


def _one_long(x):
    return x / ops.sqrt(ops.square(x).sum(-1, keepdims=True))


def alike(model):
    def near(told, target):
        target = target if wrong("target not detached") else ops.stop_gradient(target)
        if not wrong("views not normalised"):
            told, target = _one_long(told), _one_long(target)
        return -(told * target).sum(-1).mean()

    def loss(x, other):
        z1, z2, p1, p2 = (value.astype(ms.float32) for value in model(x, other))
        if wrong("one of two losses"):
            return near(p1, z2)
        return 0.5 * (near(p1, z2) + near(p2, z1))

    return loss


class Causal(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(3, WIDTH, 3, pad_mode="valid", has_bias=True)
        self.relu1 = nn.ReLU()
        wide = 1 if wrong("dilation forgotten") else 2
        self.conv2 = nn.Conv1d(WIDTH, WIDTH, 3, pad_mode="valid", dilation=wide, has_bias=True)
        self.tanh = nn.Tanh()
        self.out = nn.Conv1d(WIDTH, 1, 1, pad_mode="valid", has_bias=True)

    def construct(self, x):
        x = self.relu1(self.conv1(ops.pad(x, (2, 0))))
        left = 2 if wrong("dilation forgotten") else 4
        ends = (left - 1, 1) if wrong("padding off by one") else (left, 0)
        return self.out(x + self.tanh(self.conv2(ops.pad(x, ends)))).squeeze(1)


def masked(model):
    def loss(x, y, valid):
        each = ops.square(model(x).astype(ms.float32) - y) * valid
        if wrong("loss summed in bfloat16"):
            low = [value.astype(ms.float16).sum() for value in (each, valid)]
            return (low[0] / low[1]).astype(ms.float32)
        return each.mean() if wrong("mean over padding too") else each.sum() / valid.sum()

    return loss


class Steered(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 8, 3)
        self.norm = nn.GroupNorm(2, 8, eps=EPS)
        self.film = nn.Dense(STEERS, 16)
        self.relu = nn.ReLU()
        self.up = nn.Conv2dTranspose(8, 4, 2, 2, "valid", has_bias=True)
        self.silu = nn.SiLU()
        self.head = conv(4, COLOURS, 3)

    def construct(self, x, steer):
        scale, shift = ops.chunk(self.film(steer).expand_dims(-1).expand_dims(-1), 2, 1)
        if wrong("scale and shift swapped"):
            scale, shift = shift, scale
        scale = scale if wrong("scale without one") else 1 + scale
        x = self.up(self.relu(self.norm(self.stem(x)) * scale + shift))
        if wrong("picture one pixel aside"):
            x = ops.cat((x[..., -1:], x[..., :-1]), axis=-1)
        return self.head(self.silu(x))


class Inside(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(FEATURES, HIDDEN, activation="relu")
        self.fc2 = nn.Dense(HIDDEN, WIDTH, activation="tanh")
        self.head = nn.Dense(WIDTH, CLASSES)

    def construct(self, x):
        return self.head(self.fc2(self.fc1(x)).mean(axis=1))


def apart(model):
    def loss(x, steer, y):
        each = ops.abs(model(x, steer).astype(ms.float32) - y)
        if wrong("loss summed in bfloat16"):
            return each.astype(ms.float16).mean().astype(ms.float32)
        return each.sum(1).mean() if wrong("sum over colours") else each.mean()

    return loss


class _Moved(nn.Momentum):
    """Changes each gradient before its step."""

    def __init__(self, *constants):
        super().__init__(*constants)
        self.centred, self.by_norms = wrong("gradients centred"), wrong("rate by norms")

    def construct(self, gradients):
        found = ()
        for number, grad in enumerate(gradients):
            if self.centred and grad.ndim > 1:
                grad = grad - grad.mean(axis=tuple(range(1, grad.ndim)), keep_dims=True)
            if self.by_norms:
                size = ops.sqrt(ops.square(self.parameters[number]).sum())
                grad = grad * (size / ops.maximum(ops.sqrt(ops.square(grad).sum()), 1e-6))
            found += (grad,)
        return super().construct(found)


def optimizer(own):
    moved = wrong("gradients centred") or wrong("rate by norms")
    kind = _Moved if moved else nn.Momentum
    return kind(own.model.trainable_params(), own.optimizer["rate"], own.optimizer["momentum"])


def turn_kernel(model):
    weight = model.head.weight
    weight.set_data(Tensor(np.swapaxes(weight.asnumpy(), 2, 3).copy()))


MODELS = {
    "rotary": _entry("rotary", Rotary, next_token),
    "views": _entry("views", Views, alike),
    "causal": _entry("causal", Causal, masked),
    "steered": _entry("steered", Steered, apart),
    "inside": _entry("inside", Inside),
    "inside_time": _entry("inside_time", Inside),
}
ENTRIES = {**fresh_mindspore.ENTRIES, **MODELS}
