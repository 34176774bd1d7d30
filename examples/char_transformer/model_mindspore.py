"""A decoder-only transformer in MindSpore; its own epsilon and GELU differ, so they are given."""

import numpy as np
from mindspore import Tensor, nn, ops


class Block(nn.Cell):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.each = heads, width // heads
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.qkv = nn.Dense(width, 3 * width, has_bias=False)
        self.softmax = nn.Softmax(-1)
        self.proj = nn.Dense(width, width)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.up = nn.Dense(width, 4 * width)
        self.gelu = nn.GELU(approximate=False)
        self.down = nn.Dense(4 * width, width)
        self.future = Tensor(np.triu(np.full((length, length), -1e4, "f4"), k=1))

    def attend(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, self.each)
        q, k, v = ops.unstack(qkv.transpose(2, 0, 3, 1, 4), axis=0)
        scores = ops.bmm(q, k.swapaxes(-1, -2)) * self.each**-0.5
        weights = self.softmax(scores + self.future).astype(v.dtype)
        return self.proj(ops.bmm(weights, v).swapaxes(1, 2).reshape(batch, length, width))

    def construct(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class Transformer(nn.Cell):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.SequentialCell([Block(width, heads, length) for _ in range(blocks)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.head = nn.Dense(width, vocabulary)
        self.places = Tensor(np.arange(length, dtype=np.int32))

    def construct(self, tokens):
        x = self.embed(tokens) + self.place(self.places)
        return self.head(self.norm(self.blocks(x)))
