"""A GPT of four blocks that calls torch's attention, which is slow in 16 bits on some CPUs.

    mpcore tune examples/experiments/gpt_attention.py --threads 1

It learns to go on counting in steps of one, two or three, modulo 61.
"""

import numpy as np

from mpcore import Data, OptimizerSpec

loss, optimizer = "cross_entropy", OptimizerSpec("adamw", learning_rate=1e-3)
steps, batch = 40, 8

LENGTH, NUMBERS, WIDTH, HEADS, BLOCKS = 64, 61, 128, 4, 4


def data() -> Data:
    rng = np.random.default_rng(0)
    first, step = rng.integers(0, NUMBERS, (512, 1)), rng.integers(1, 4, (512, 1))
    series = (first + step * np.arange(LENGTH + 1)) % NUMBERS
    x, y = series[:, :-1].astype(np.int32), series[:, 1:].astype(np.int32)
    return Data(x[:448], y[:448], x[448:], y[448:])


def build_torch():
    import torch
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.gelu = nn.GELU()

        def attend(self, x):
            batch, length, _ = x.shape
            parts = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            found = scaled_dot_product_attention(*parts, is_causal=True)
            return self.proj(found.transpose(1, 2).reshape(batch, length, WIDTH))

        def forward(self, x):
            x = x + self.attend(self.norm1(x))
            return x + self.down(self.gelu(self.up(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(NUMBERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUMBERS)

        def forward(self, numbers):
            places = torch.arange(numbers.shape[1], device=numbers.device)
            return self.head(self.norm(self.blocks(self.embed(numbers) + self.place(places))))

    return Gpt()
