"""Models that a graph must get right in torch: each gives a model, a batch, and a loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], Callable[..., torch.Tensor]]


def tokens_loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(out.flatten(0, 1), y.flatten())


class Block(nn.Module):
    """Attention written by hand: the same normalised value is cast for three products."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        h = self.ln1(x)
        q, k, v = (
            layer(h).view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        a = (q @ k.transpose(-2, -1)) * (d // self.heads) ** -0.5
        a = a.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        x = x + self.o((functional.softmax(a, -1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(functional.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    def __init__(
        self, width: int = 256, depth: int = 4, words: int = 256, length: int = 128
    ) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        x = self.tok(i) + self.pos(torch.arange(i.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def gpt(width: int = 32, depth: int = 2, words: int = 32, length: int = 16, batch: int = 2) -> Made:
    model = GPT(width, depth, words, length)
    x, y = (torch.randint(0, words, (batch, length)) for _ in range(2))
    return model, (x, y), tokens_loss


class UNet(nn.Module):
    def __init__(self, c: int = 8) -> None:
        super().__init__()

        def twice(i: int, o: int) -> nn.Sequential:
            first = (nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU())
            return nn.Sequential(
                *first, nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU()
            )

        self.down1, self.down2 = twice(3, c), twice(c, 2 * c)
        self.pool = nn.MaxPool2d(2)
        self.up, self.join = nn.ConvTranspose2d(2 * c, c, 2, 2), twice(2 * c, c)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(self.pool(a))
        return self.out(self.join(torch.cat([self.up(b), a], 1)))


def unet() -> Made:
    batch = (torch.randn(2, 3, 16, 16), torch.rand(2, 1, 16, 16).round())
    return UNet(), batch, functional.binary_cross_entropy_with_logits


class LSTMNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.rnn = nn.Embedding(32, 16), nn.LSTM(16, 24, 2, batch_first=True)
        self.fc = nn.Linear(24, 32)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.fc(self.rnn(self.e(i))[0])


def lstm() -> Made:
    x, y = (torch.randint(0, 32, (2, 8)) for _ in range(2))
    return LSTMNet(), (x, y), tokens_loss


class Branchy(nn.Module):
    """Python decides by values: several graphs, with 16 bits on their edges."""

    def __init__(self, d: int = 32) -> None:
        super().__init__()
        self.inp, self.b = nn.Linear(16, d), nn.Linear(d, d)
        self.a = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inp(x)
        h = h + self.a(self.ln(h)) if h.float().mean() > 0 else h + self.b(h)
        n = 0
        while n < 3 and h.float().norm() > 1.0:
            h = h * 0.5 + self.ln(h) * 0.1
            n += 1
        return self.head(h)


def branchy() -> Made:
    return Branchy(), (torch.randn(8, 16), torch.randint(0, 10, (8,))), functional.cross_entropy


class Residual(nn.Module):
    """What writes in place: batch norm's statistics, ``relu_``, ``out += x``."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(c, c, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(c), nn.BatchNorm2d(c)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x
        return self.relu(out)


class ConvNet(nn.Module):
    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, c, 3), nn.BatchNorm2d(c)
        self.blocks = nn.Sequential(Residual(c), Residual(c))
        self.drop, self.fc = nn.Dropout(0.3), nn.Linear(c, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(functional.max_pool2d(functional.relu(self.bn(self.stem(x))), 2))
        return self.fc(self.drop(x.mean((2, 3))))


def convnet() -> Made:
    return (
        ConvNet(),
        (torch.randn(4, 3, 12, 12), torch.randint(0, 5, (4,))),
        functional.cross_entropy,
    )


class _Basic(nn.Module):
    """A block of the residual networks of 18 layers: its shortcut may be a convolution."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.short = None
        if stride > 1:
            conv = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.short = nn.Sequential(conv, nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.short is None else self.short(x)
        return self.relu(out)


class ResNet18(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        sizes = (64, 64, 128, 256, 512)
        pairs = [(sizes[i], sizes[i + 1], 1 if i == 0 else 2) for i in range(4)]
        self.blocks = nn.Sequential(
            *(b for i, o, s in pairs for b in (_Basic(i, o, s), _Basic(o, o, 1)))
        )
        self.fc = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.bn(self.conv(x))), 3, 2, 1)
        return self.fc(self.blocks(x).mean((2, 3)))


def resnet18() -> Made:
    batch = (torch.randn(8, 3, 96, 96), torch.randint(0, 10, (8,)))
    return ResNet18(), batch, functional.cross_entropy


class Shared(nn.Module):
    """One weight read by two products, one value read twice by one product, a value kept."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.e, self.f, self.ln = nn.Embedding(32, d), nn.Linear(d, d), nn.LayerNorm(d)
        self.g = nn.Linear(d, d)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        h = self.ln(self.e(i))
        a = torch.tanh(h)
        once = self.f(h) + self.f(torch.sin(h)) + self.g(h)
        late = torch.cos(h) + self.g(h)
        mixed = functional.scaled_dot_product_attention(h, h, h) + torch.softmax(h @ h.mT, -1) @ h
        return functional.linear(once + late + mixed + a, self.e.weight)


def shared() -> Made:
    x, y = (torch.randint(0, 32, (2, 8)) for _ in range(2))
    return Shared(), (x, y), tokens_loss


class Attention(nn.Module):
    """Functions of torch that are made of others."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.inp = nn.Linear(4, d)
        self.mha = nn.MultiheadAttention(d, 2, batch_first=True)
        self.out = nn.Linear(d, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.normalize(self.inp(x), dim=-1)
        h = h + self.mha(h, h, h, need_weights=False)[0]
        h = h + torch.einsum("btd,bsd->bts", h, h) @ h
        return self.out(h.mean(1))


def attention() -> Made:
    return Attention(), (torch.randn(4, 5, 4), torch.randint(0, 3, (4,))), functional.cross_entropy


MODELS: dict[str, Callable[[], Made]] = {
    "gpt": gpt,
    "unet": unet,
    "lstm": lstm,
    "branchy": branchy,
    "convnet": convnet,
    "shared": shared,
    "attention": attention,
}
