"""The five architectures of ``newer`` in PyTorch."""

from __future__ import annotations

import torch
import unseen_torch
from newer import EXPERTS
from torch import nn
from torch.nn import functional
from unseen import HIDDEN
from unseen_torch import conv_norm
from zoo import CLASSES, FEATURES, VOCABULARY, WIDTH
from zoo_torch import _entry, classify, classify_weighted


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.gelu = nn.GELU()
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return self.down(self.gelu(self.up(x)))


class Experts(nn.Module):
    """Every expert answers; the gate weighs them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.share = nn.Softmax(-1)
        self.expert1, self.expert2, self.expert3 = Expert(), Expert(), Expert()
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.enter(x)
        share = self.share(self.gate(x))
        told = torch.stack([self.expert1(x), self.expert2(x), self.expert3(x)], -1)
        return self.head(self.norm(x + (told * share[:, None].to(told.dtype)).sum(-1)))


class GraphConv(nn.Module):
    def __init__(self, inside: int) -> None:
        super().__init__()
        self.mix = nn.Linear(inside, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.relu = nn.ReLU()

    def forward(self, x, near):
        x = self.mix(x)
        return self.relu(self.norm(near.to(x.dtype) @ x))


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = GraphConv(FEATURES)
        self.conv2 = GraphConv(WIDTH)
        self.hidden = nn.Linear(WIDTH, HIDDEN)
        self.elu = nn.ELU()
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x, near):
        x = self.conv2(self.conv1(x, near), near).mean(1)
        return self.head(self.elu(self.hidden(x)))


class TimeMix(nn.Module):
    """Attention without scores: past values fade by a learned decay."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.receive = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Sigmoid()
        self.decay = nn.Parameter(torch.linspace(-1, 1, WIDTH))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        x = self.norm(x)
        key = self.key(x).float().clamp(-8, 8).exp()
        value, keep = self.value(x).float(), torch.exp(-torch.exp(self.decay.float()))
        above = below = torch.zeros_like(value[:, 0])
        told = []
        for at in range(x.shape[1]):
            above = above * keep + key[:, at] * value[:, at]
            below = below * keep + key[:, at]
            told.append(above / below)
        mixed = torch.stack(told, 1)
        received = self.gate(self.receive(x))
        return self.out(received * mixed.to(received.dtype))


class ChannelMix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.relu = nn.ReLU()
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down(self.relu(self.up(self.norm(x))).square())


class TimeMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.time1, self.channel1 = TimeMix(), ChannelMix()
        self.time2, self.channel2 = TimeMix(), ChannelMix()
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens):
        x = self.embed(tokens)
        for part in (self.time1, self.channel1, self.time2, self.channel2):
            x = x + part(x)
        return self.head(self.norm(x).mean(1))


class AttentionGate(nn.Module):
    """The way up says which pixels of the skip count."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.skip = nn.Conv2d(channels, channels, 1)
        self.above = nn.Conv2d(channels, channels, 1)
        self.relu = nn.ReLU()
        self.score = nn.Conv2d(channels, 1, 1)
        self.gate = nn.Sigmoid()

    def forward(self, skip, above):
        score = self.score(self.relu(self.skip(skip) + self.above(above)))
        return skip * self.gate(score)


class AttentionUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = conv_norm(3, 4)
        self.pool1 = nn.MaxPool2d(2)
        self.down2 = conv_norm(4, 8)
        self.pool2 = nn.AvgPool2d(2)
        self.bottom = conv_norm(8, 8)
        self.up2 = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.look2 = AttentionGate(8)
        self.merge2 = conv_norm(16, 8)
        self.up1 = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.look1 = AttentionGate(4)
        self.merge1 = conv_norm(8, 4)
        self.head = nn.Conv2d(4, CLASSES, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(self.pool1(first))
        x = self.up2(self.bottom(self.pool2(second)))
        x = self.up1(self.merge2(torch.cat([self.look2(second, x), x], 1)))
        return self.head(self.merge1(torch.cat([self.look1(first, x), x], 1)))


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(2, 6, 3, padding=1)
        self.norm1 = nn.BatchNorm3d(6)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool3d(2)
        self.conv2 = nn.Conv3d(6, 8, 3)
        self.leaky = nn.LeakyReLU(0.1)
        self.hidden = nn.Linear(8, HIDDEN)
        self.silu = nn.SiLU()
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        x = self.pool1(self.relu1(self.norm1(self.conv1(x))))
        x = self.leaky(self.conv2(x)).mean((2, 3, 4))
        return self.head(self.silu(self.hidden(x)))


def classify_nodes(model):
    return lambda x, near, y: functional.cross_entropy(model(x, near), y.long())


MODELS = {
    "experts": _entry("experts", Experts, classify),
    "graph": _entry("graph", Graph, classify_nodes),
    "timemix": _entry("timemix", TimeMixer, classify_weighted),
    "attunet": _entry("attunet", AttentionUNet, classify),
    "volume": _entry("volume", Volume, classify),
}
ENTRIES = {**unseen_torch.ENTRIES, **MODELS}
