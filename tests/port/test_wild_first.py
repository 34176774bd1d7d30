"""What networks and loops of repositories that nobody tuned for asked for, port beside original."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import beside

if TYPE_CHECKING:
    from pathlib import Path

OWN_NORM = """import torch
from torch import nn
class LayerNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
    def forward(self, x):
        return x * self.weight + self.bias
class Wide(nn.LayerNorm):
    pass
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.norm, self.wide = LayerNorm(3), nn.LayerNorm(3), Wide(3)
        self.apply(self.start)
    def start(self, m):
        if isinstance(m, {kinds}):
            nn.init.constant_(m.bias, 0.5)
            nn.init.constant_(m.weight, 2.0)
    def forward(self, x):
        return self.wide(self.norm(self.own(x)))
made = [Net()(torch.arange(6.0).view(2, 3) ** 2)]
"""


@pytest.mark.parametrize("kinds", ["(LayerNorm, nn.LayerNorm)", "Wide", "(LayerNorm, Wide)"])
def test_a_class_of_the_script_stands_beside_a_norm(kinds: str, tmp_path: Path) -> None:
    beside(OWN_NORM.format(kinds=kinds), tmp_path)


HOOKS = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5, -2.25, 3.75]))
    def forward(self, x):
        return x * self.weight
def train(model, optimizer, scaler, batches):
    for x in batches:
        y = model(x)
        {inner}
        loss = y.pow(2).mean()
        {outer}
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda", enabled=False)
train(model, optimizer, scaler, [torch.ones(2, 3), torch.arange(6.0).view(2, 3)])
made = [model.weight]
"""
HALF = "{}.register_hook(lambda grad: grad * 0.5)"


@pytest.mark.parametrize(
    ("inner", "outer"), [(HALF.format("y"), "pass"), ("pass", HALF.format("loss"))]
)
def test_hooks_halve_gradients_of_a_step(inner: str, outer: str, tmp_path: Path) -> None:
    beside(HOOKS.format(inner=inner, outer=outer), tmp_path)
