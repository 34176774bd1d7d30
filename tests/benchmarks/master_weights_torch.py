"""A training step in torch under one scheme of master weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

import mpcore as mp

if TYPE_CHECKING:
    from collections.abc import Callable


def set_threads(count: int) -> None:
    torch.set_num_threads(count)


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "mpcore": mp.__version__}


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def build(policy: str, width: int, layers: int, rows: int) -> Callable[[], object]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(device())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    amp = mp.prepare(model, optimizer, policy, count_lost_updates="off")
    x = torch.randn(rows, width, device=device())

    def loss_fn(x):
        return model(x).square().mean()

    return lambda: amp.step(loss_fn, x)
