"""What ``mp.record`` adds to a step of torch: plain and recorded steps in alternation, CPU time.

python tests/benchmarks/record_cost.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import mpcore as mp


def cnn() -> tuple[nn.Module, Any, Any]:
    def block(channels: int, more: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, more, 3, padding=1), nn.BatchNorm2d(more), nn.ReLU()
        )

    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    model = nn.Sequential(block(3, 32), block(32, 64), nn.MaxPool2d(2), block(64, 64), *head)
    return model, torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))


def transformer() -> tuple[nn.Module, Any, Any]:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(65, 256), blocks, nn.Linear(256, 65))
    return model, torch.randint(0, 65, (8, 64)), torch.randint(0, 65, (8, 64))


def measure(name: str, make: Any, every: int, steps: int) -> None:
    """Print the ratio of recorded to plain steps."""
    torch.manual_seed(0)
    sides = []
    for _ in range(2):
        model, x, y = make()
        sides.append((model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), x, y))

    def step(side: int) -> float:
        model, optimizer, x, y = sides[side]
        start = time.process_time()
        optimizer.zero_grad()
        out = model(x)
        functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1)).backward()
        optimizer.step()
        return time.process_time() - start

    for side in (0, 1, 0, 1):
        step(side)
    seconds: tuple[list[float], list[float]] = [], []
    with tempfile.TemporaryDirectory() as folder:
        recording = mp.record(sides[1][0], folder, steps=10**6, every=every)
        for number in range(steps):
            for side in (0, 1) if number % 2 else (1, 0):
                seconds[side].append(step(side))
        recording.stop()
    plain, recorded = map(statistics.median, seconds)
    print(
        f"{name}, every {every}: {plain * 1e3:.0f} ms plain, {recorded * 1e3:.0f} ms recorded, "
        f"ratio of medians {recorded / plain:.2f}, of sums {sum(seconds[1]) / sum(seconds[0]):.3f}"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, make in (("CNN", cnn), ("transformer", transformer)):
        measure(name, make, 1, 12)
        measure(name, make, 50, 100)
