"""The parts in PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from transfer import ATTEND, CHANNELS, HIDDEN, WIDTH
from zoo import VOCABULARY


class First(nn.Module):
    """A recurrent layer without the states that it returns, too."""

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x):
        return self.rnn(x)[0]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        query, key, value = ATTEND
        self.attention = nn.MultiheadAttention(query, 2, kdim=key, vdim=value, batch_first=True)

    def forward(self, x):
        return self.attention(*x.split(ATTEND, dim=-1), need_weights=False)[0]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        return self.head(self.norm(self.tokens(x)))


def recurrent(kind, **options):
    return lambda: First(kind(WIDTH, HIDDEN, batch_first=True, **options))


def separable():
    depthwise = nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, groups=CHANNELS, bias=False)
    return nn.Sequential(depthwise, nn.Conv2d(2 * CHANNELS, 4, 1))


PARTS = {
    "lstm": recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "gru": recurrent(nn.GRU, num_layers=2, bidirectional=True),
    "rnn": recurrent(nn.RNN),
    "lstm_without_bias": recurrent(nn.LSTM, bias=False),
    "attention": Attention,
    "depthwise": lambda: nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, groups=CHANNELS),
    "grouped": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "transposed": lambda: nn.ConvTranspose2d(CHANNELS, 4, 3, stride=2),
    "separable": separable,
    "prelu": lambda: nn.PReLU(CHANNELS),
    "tied": Tied,
}


def loss(model):
    return lambda x: model(x).square().mean()


def output(model, x):
    with torch.no_grad():
        return model.eval()(x).numpy()
