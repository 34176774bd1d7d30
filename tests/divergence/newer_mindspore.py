"""The architectures of ``newer`` in MindSpore."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import unseen_mindspore
from mindspore import nn, ops
from newer import EXPERTS
from unseen import HIDDEN
from unseen_mindspore import conv_norm
from zoo import CLASSES, EPS, FEATURES, VOCABULARY, WIDTH
from zoo_mindspore import _entry, classify, classify_weighted, conv


def layer_norm() -> nn.Cell:
    return nn.LayerNorm((WIDTH,), epsilon=EPS)


class Expert(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Dense(WIDTH, HIDDEN)
        self.gelu = nn.GELU(approximate=False)
        self.down = nn.Dense(HIDDEN, WIDTH)

    def construct(self, x):
        return self.down(self.gelu(self.up(x)))


class Experts(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Dense(FEATURES, WIDTH)
        self.gate = nn.Dense(WIDTH, EXPERTS)
        self.share = nn.Softmax(-1)
        self.expert1, self.expert2, self.expert3 = Expert(), Expert(), Expert()
        self.norm = layer_norm()
        self.head = nn.Dense(WIDTH, CLASSES)

    def construct(self, x):
        x = self.enter(x)
        share = self.share(self.gate(x))
        told = ops.stack([self.expert1(x), self.expert2(x), self.expert3(x)], -1)
        share = share.expand_dims(1).astype(told.dtype)
        return self.head(self.norm(x + (told * share).sum(-1)))


class GraphConv(nn.Cell):
    def __init__(self, inside: int) -> None:
        super().__init__()
        self.mix = nn.Dense(inside, WIDTH)
        self.norm = layer_norm()
        self.relu = nn.ReLU()

    def construct(self, x, near):
        x = self.mix(x)
        return self.relu(self.norm(ops.matmul(near.astype(x.dtype), x)))


class Graph(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = GraphConv(FEATURES)
        self.conv2 = GraphConv(WIDTH)
        self.hidden = nn.Dense(WIDTH, HIDDEN)
        self.elu = nn.ELU()
        self.head = nn.Dense(HIDDEN, CLASSES)

    def construct(self, x, near):
        x = self.conv2(self.conv1(x, near), near).mean(axis=1)
        return self.head(self.elu(self.hidden(x)))


class TimeMix(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = layer_norm()
        self.key = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.value = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.receive = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.gate = nn.Sigmoid()
        self.decay = ms.Parameter(ms.Tensor(np.zeros(WIDTH, np.float32)), name="decay")
        self.out = nn.Dense(WIDTH, WIDTH, has_bias=False)

    def construct(self, x):
        x = self.norm(x)
        key = ops.exp(ops.clamp(self.key(x).astype(ms.float32), -8.0, 8.0))
        value = self.value(x).astype(ms.float32)
        keep = ops.exp(-ops.exp(self.decay.astype(ms.float32)))
        above = below = ops.zeros_like(value[:, 0])
        told = []
        for at in range(x.shape[1]):
            above = above * keep + key[:, at] * value[:, at]
            below = below * keep + key[:, at]
            told.append(above / below)
        received = self.gate(self.receive(x))
        return self.out(received * ops.stack(told, 1).astype(received.dtype))


class ChannelMix(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = layer_norm()
        self.up = nn.Dense(WIDTH, HIDDEN, has_bias=False)
        self.relu = nn.ReLU()
        self.down = nn.Dense(HIDDEN, WIDTH, has_bias=False)

    def construct(self, x):
        return self.down(ops.square(self.relu(self.up(self.norm(x)))))


class TimeMixer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.time1, self.channel1 = TimeMix(), ChannelMix()
        self.time2, self.channel2 = TimeMix(), ChannelMix()
        self.norm = layer_norm()
        self.head = nn.Dense(WIDTH, CLASSES)

    def construct(self, tokens):
        x = self.embed(tokens)
        for part in (self.time1, self.channel1, self.time2, self.channel2):
            x = x + part(x)
        return self.head(self.norm(x).mean(axis=1))


class AttentionGate(nn.Cell):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.skip = conv(channels, channels, 1)
        self.above = conv(channels, channels, 1)
        self.relu = nn.ReLU()
        self.score = conv(channels, 1, 1)
        self.gate = nn.Sigmoid()

    def construct(self, skip, above):
        score = self.score(self.relu(self.skip(skip) + self.above(above)))
        return skip * self.gate(score)


class AttentionUNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = conv_norm(3, 4)
        self.pool1 = nn.MaxPool2d(2, 2)
        self.down2 = conv_norm(4, 8)
        self.pool2 = nn.AvgPool2d(2, 2)
        self.bottom = conv_norm(8, 8)
        self.up2 = nn.Conv2dTranspose(8, 8, 2, 2, "valid", has_bias=True)
        self.look2 = AttentionGate(8)
        self.merge2 = conv_norm(16, 8)
        self.up1 = nn.Conv2dTranspose(8, 4, 2, 2, "valid", has_bias=True)
        self.look1 = AttentionGate(4)
        self.merge1 = conv_norm(8, 4)
        self.head = conv(4, CLASSES, 1)

    def construct(self, x):
        first = self.down1(x)
        second = self.down2(self.pool1(first))
        x = self.up2(self.bottom(self.pool2(second)))
        x = self.up1(self.merge2(ops.cat((self.look2(second, x), x), axis=1)))
        return self.head(self.merge1(ops.cat((self.look1(first, x), x), axis=1)))


def classify_nodes(model):
    return lambda x, near, y: ops.cross_entropy(model(x, near), y)


MODELS = {
    "experts": _entry("experts", Experts, classify),
    "graph": _entry("graph", Graph, classify_nodes),
    "timemix": _entry("timemix", TimeMixer, classify_weighted),
    "attunet": _entry("attunet", AttentionUNet, classify),
}
"""Without the convolutions over volumes: MindSpore has none on a CPU."""

ENTRIES = {**unseen_mindspore.ENTRIES, **MODELS}
