"""Layers that are not there, numbers of queues, parts that may be None, and what torch counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import beside, ported

if TYPE_CHECKING:
    from pathlib import Path

GAPS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([])
        for place in range(3):
            side = None
            if place == 1:
                side = nn.Linear(4, 4)
            self.blocks.append(nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()), side]))

    def forward(self, x):
        for block, side in self.blocks:
            if side is not None:
                x = x + side(x)
            x = block(x)
        return x


net = Net()
names = sorted(net.state_dict())
net.eval()
net.train()
with torch.no_grad():
    for place, value in enumerate(net.parameters()):
        value.fill_(0.1 * (place + 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(2, 4)
loss = net(x).mean()
optimizer.zero_grad()
loss.backward()
optimizer.step()
made = [net(x), len(names), len(names[0]), sum(len(name) for name in names)]
made += [len(list(net.parameters())), len(net.blocks), float(net.blocks[0][1] is None)]
"""

QUEUE = """
from collections import deque

import torch

window = deque(maxlen=2)
for number in (1.0, 2.0, 4.0):
    window.append(number)
made = [torch.tensor(window), torch.tensor(window).mean(), torch.as_tensor(window)]
"""

PERHAPS = """
import torch
from torch import nn


class Entry:
    def __init__(self, model):
        self.model = model


class Runner:
    def __init__(self, changes):
        self.front, self.back = Entry(nn.Linear(3, 4)), Entry(nn.Linear(4, 1))
        self.changes = changes
        for entry in (self.front, self.back):
            with torch.no_grad():
                for value in entry.model.parameters():
                    value.fill_(0.3)

    def parameters(self):
        return [p for entry in (self.front, self.back) for p in entry.model.parameters()]

    def train(self, x):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        change = None
        if self.changes:
            change = nn.Tanh()
        for _ in range(2):
            features = self.front.model(x)
            if change:
                features = change(features)
            loss = self.back.model(features).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return self.parameters()


made = [*Runner(False).train(torch.ones(2, 3)), *Runner(True).train(torch.ones(2, 3))]
"""

COUNTED = """
import torch

x = torch.tensor([[3, 1, 1], [2, 3, 1], [3, 1, 1]])
values, places, counts = torch.unique(x, return_inverse=True, return_counts=True)
made = [values, places, counts, torch.unique(x.float()), x.unique(dim=0)]
made += [x.unique(True, True)[1], torch.unique(x, sorted=False).sum()]
made += [cls.item() for cls in torch.unique(x[:, 0])]
"""

WORDS = """
import math

import torch

torch.distributions.Distribution.set_default_validate_args(False)
x, y = torch.tensor([[1.0, 2.0], [3.0, 1.0]]), torch.tensor([[2.0, 1.0]])
made = [torch.cosine_similarity(x, y, dim=-1), torch.e, float(math.isnan(torch.nan))]
"""


CHOSEN_AGAIN = """
import torch
from torch import nn

norm_class = nn.BatchNorm2d


def choose(plain):
    global norm_class
    norm_class = nn.Identity if plain else nn.BatchNorm2d


def build():
    return nn.Sequential(norm_class(3), nn.ReLU())


x = torch.arange(24.0).reshape(2, 3, 2, 2) - 9
made = [build()(x)]
choose(True)
made += [build()(x), len(build().state_dict())]
"""

NO_SIZE = """
import torch

total = torch.zeros([], device="cpu")
total += 2.5
made = [total, torch.ones(()), torch.zeros([], dtype=torch.int64), torch.tensor(total.dim())]
"""


@pytest.mark.parametrize("script", [GAPS, QUEUE, PERHAPS, COUNTED, WORDS, CHOSEN_AGAIN, NO_SIZE])
def test_runs_as_in_torch(script: str, tmp_path: Path) -> None:
    """What both make is the same; nothing is refused."""
    assert "refused" not in beside(script, tmp_path).text


def test_a_list_without_gaps_is_mindspores_own() -> None:
    """A list of layers that are all there needs nothing of the support."""
    script = "from torch import nn\n\nlayers = nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])\n"
    assert "nn.CellList([" in ported(script).text
