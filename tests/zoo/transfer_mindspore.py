"""The parts in MindSpore."""

from __future__ import annotations

from mindspore import nn
from transfer import ATTEND, CHANNELS, HIDDEN, WIDTH
from zoo import EPS, VOCABULARY


class First(nn.Cell):
    """A recurrent layer without the states that it returns, too."""

    def __init__(self, rnn: nn.Cell) -> None:
        super().__init__()
        self.rnn = rnn

    def construct(self, x):
        return self.rnn(x)[0]


class Attention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        query, key, value = ATTEND
        self.attention = nn.MultiheadAttention(query, 2, kdim=key, vdim=value, batch_first=True)

    def construct(self, x):
        query, rest = ATTEND[0], ATTEND[0] + ATTEND[1]
        q, k, v = x[..., :query], x[..., query:rest], x[..., rest:]
        return self.attention(q, k, v, need_weights=False)[0]


class Tied(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.norm = nn.LayerNorm((WIDTH,), epsilon=EPS)
        self.head = nn.Dense(WIDTH, VOCABULARY, has_bias=False)
        self.head.weight = self.tokens.embedding_table

    def construct(self, x):
        return self.head(self.norm(self.tokens(x)))


def recurrent(kind, **options):
    return lambda: First(kind(WIDTH, HIDDEN, batch_first=True, **options))


def conv(inside, outside, kernel, group=1, bias=True):
    return nn.Conv2d(inside, outside, kernel, pad_mode="valid", group=group, has_bias=bias)


def separable():
    depthwise = conv(CHANNELS, 2 * CHANNELS, 3, CHANNELS, bias=False)
    return nn.SequentialCell(depthwise, conv(2 * CHANNELS, 4, 1))


PARTS = {
    "lstm": recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "gru": recurrent(nn.GRU, num_layers=2, bidirectional=True),
    "rnn": recurrent(nn.RNN),
    "lstm_without_bias": recurrent(nn.LSTM, has_bias=False),
    "attention": Attention,
    "depthwise": lambda: conv(CHANNELS, 2 * CHANNELS, 3, CHANNELS),
    "grouped": lambda: conv(4, 6, 3, 2),
    "transposed": lambda: nn.Conv2dTranspose(CHANNELS, 4, 3, 2, "valid", has_bias=True),
    "separable": separable,
    "prelu": lambda: nn.PReLU(CHANNELS),
    "tied": Tied,
}


def loss(model):
    return lambda x: model(x).square().mean()


def output(model, x):
    return model.set_train(False)(x).asnumpy()
