"""Ten small models that tune's campaigns search, each an experiment of its own.

``file_of(name, folder)`` writes an experiment file that calls ``use(name)``: a search runs one.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mpcore import Data, OptimizerSpec

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

_GPT = ROOT / "examples" / "experiments" / "gpt_attention.py"


def images(size: int, channels: int = 3, count: int = 128, seed: int = 0) -> Data:
    """Pictures of ten classes: each class has a pattern of its own under noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, count).astype(np.int32)
    pattern = rng.normal(size=(10, channels, size, size))
    x = (pattern[y] + 2 * rng.normal(size=(count, channels, size, size))).astype(np.float32)
    return Data(x[:96], y[:96], x[96:], y[96:], layout="channels_first")


def rows(width: int, classes: int = 10, count: int = 192, seed: int = 0) -> Data:
    """Vectors whose class is that of the nearest of some centres."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, count).astype(np.int32)
    x = (rng.normal(size=(classes, width))[y] + rng.normal(size=(count, width))).astype(np.float32)
    cut = count * 3 // 4
    return Data(x[:cut], y[:cut], x[cut:], y[cut:])


def series(length: int, numbers: int = 61, count: int = 256, seed: int = 0) -> Data:
    """Series that count on in steps of one to three; the class is the next number."""
    rng = np.random.default_rng(seed)
    first, step = rng.integers(0, numbers, (count, 1)), rng.integers(1, 4, (count, 1))
    whole = (first + step * np.arange(length + 1)) % numbers
    x, y = whole[:, :-1].astype(np.int32), whole[:, -1].astype(np.int32)
    cut = count * 3 // 4
    return Data(x[:cut], y[:cut], x[cut:], y[cut:])


def resnet() -> Any:
    from torch import nn

    class Block(nn.Module):
        def __init__(self, into: int, out: int, stride: int) -> None:
            super().__init__()
            self.a = nn.Conv2d(into, out, 3, stride, 1, bias=False)
            self.b = nn.Conv2d(out, out, 3, 1, 1, bias=False)
            self.na, self.nb, self.act = nn.BatchNorm2d(out), nn.BatchNorm2d(out), nn.ReLU()
            self.skip = nn.Conv2d(into, out, 1, stride) if stride > 1 else nn.Identity()

        def forward(self, x):
            return self.act(self.nb(self.b(self.act(self.na(self.a(x))))) + self.skip(x))

    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), *blocks, *head)


def unet() -> Any:
    import torch
    from torch import nn

    def two(into: int, out: int) -> nn.Module:
        norm = nn.GroupNorm(4, out)
        return nn.Sequential(nn.Conv2d(into, out, 3, 1, 1), norm, nn.SiLU(),
                             nn.Conv2d(out, out, 3, 1, 1), nn.SiLU())  # fmt: skip

    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.d1, self.d2, self.mid = two(3, 16), two(16, 32), two(32, 64)
            self.u2, self.u1 = two(96, 32), two(48, 16)
            self.pool, self.up = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
            self.out = nn.Linear(16, 10)

        def forward(self, x):
            a = self.d1(x)
            b = self.d2(self.pool(a))
            c = self.mid(self.pool(b))
            c = self.u2(torch.cat([self.up(c), b], 1))
            return self.out(self.u1(torch.cat([self.up(c), a], 1)).mean((2, 3)))

    return Unet()


def lstm() -> Any:
    from torch import nn

    class Lstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm = nn.Embedding(61, 128), nn.LSTM(128, 128, 2, batch_first=True)
            self.head = nn.Linear(128, 61)

        def forward(self, x):
            return self.head(self.lstm(self.embed(x))[0][:, -1])

    return Lstm()


def mixer() -> Any:
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(96), nn.LayerNorm(96)
            self.t = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
            self.c = nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96))

        def forward(self, x):
            x = x + self.t(self.n1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.c(self.n2(x))

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.head = nn.Conv2d(3, 96, 4, 4), nn.Linear(96, 10)
            self.blocks = nn.Sequential(Block(), Block())

        def forward(self, x):
            return self.head(self.blocks(self.patch(x).flatten(2).transpose(1, 2)).mean(1))

    return Mixer()


def mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))  # fmt: skip


def plain_cnn() -> Any:
    from torch import nn

    return nn.Sequential(nn.Conv2d(3, 24, 5, 2, 2), nn.GELU(), nn.Conv2d(24, 48, 3, 2, 1),
                         nn.GELU(), nn.Flatten(), nn.Linear(48 * 64, 10))  # fmt: skip


def gru() -> Any:
    from torch import nn

    class Gru(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.gru = nn.Embedding(61, 96), nn.GRU(96, 96, batch_first=True)
            self.norm, self.head = nn.LayerNorm(96), nn.Linear(96, 61)

        def forward(self, x):
            return self.head(self.norm(self.gru(self.embed(x))[0][:, -1]))

    return Gru()


def encoder() -> Any:
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(61, 96)
            one = nn.TransformerEncoderLayer(96, 4, 256, 0.0, batch_first=True)
            self.layers, self.head = nn.TransformerEncoder(one, 2), nn.Linear(96, 61)

        def forward(self, x):
            return self.head(self.layers(self.embed(x))[:, -1])

    return Encoder()


def depthwise() -> Any:
    from torch import nn

    def block(into: int, out: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(into, into, 3, stride, 1, groups=into), nn.BatchNorm2d(into),
                nn.Conv2d(into, out, 1), nn.Hardswish()]  # fmt: skip

    parts = [nn.Conv2d(3, 24, 3, 2, 1), *block(24, 48, 1), *block(48, 96, 2), *block(96, 96, 1)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10))


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Data], int]] = {
    "resnet": (resnet, lambda: images(32), 16),
    "unet": (unet, lambda: images(32), 8),
    "lstm": (lstm, lambda: series(64), 16),
    "mixer": (mixer, lambda: images(32), 16),
    "mlp": (mlp, lambda: rows(256), 32),
    "cnn": (plain_cnn, lambda: images(32), 16),
    "gru": (gru, lambda: series(48), 16),
    "encoder": (encoder, lambda: series(48), 16),
    "depthwise": (depthwise, lambda: images(32), 16),
}
"""Name: (model, data, batch); ``"gpt"`` is the example of the documentation."""

NAMES = ("gpt", *MODELS)
QUIET = ("resnet", "unet", "lstm", "mixer")
"""Models on which no rule gains anything on the CPU that the study was made on."""


def use(name: str) -> dict[str, Any]:
    """Return what the experiment file of a model defines."""
    if name == "gpt":
        found = runpy.run_path(str(_GPT))
        wanted = ("data", "build_torch", "loss", "optimizer", "steps", "batch")
        return {key: found[key] for key in wanted} | {"name": name}
    build, data, batch = MODELS[name]

    def build_torch() -> Any:
        import torch

        torch.manual_seed(0)
        return build()

    return {
        "name": name, "data": data, "build_torch": build_torch, "loss": "cross_entropy",
        "optimizer": OptimizerSpec("adamw", learning_rate=1e-3), "steps": 40, "batch": batch,
    }  # fmt: skip


def file_of(name: str, folder: Path) -> Path:
    """Return an experiment file of a model, written to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    text = f"import sys\nsys.path.insert(0, {str(HERE)!r})\nfrom tune_zoo import use\n"
    path.write_text(f"{text}globals().update(use({name!r}))\n", encoding="utf-8")
    return path
