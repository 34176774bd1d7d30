"""What modules and functions of many repositories asked for, port beside original."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import beside

if TYPE_CHECKING:
    from pathlib import Path

SLOPES = """import torch
from torch import nn
made = []
def f(w):
    y = {made}
    return y * w + w * y + y.sum()
for start in ([1.5, -2.25, 3.75], [0.5, 0.25, -1.0]):
    w = nn.Parameter(torch.tensor(start))
    loss = f(w).sum()
    loss.backward()
    made += [loss.detach(), w.grad]
"""
NO_SLOPES = (
    *("w > 0", "w == w.max()", "w != 1.5", "0.3 <= w", "torch.gt(w, 0)", "w.le(1)", "~(w > 0)"),
    *("torch.isfinite(w)", "torch.isclose(w, w)", "torch.logical_and(w > 0, w < 2)", "w.bool()"),
    *("w.long()", "w.int().float()", "w.to(torch.int64)", "w.type(torch.int32)", "w.abs().byte()"),
    *("(w > 0).type(torch.uint8)", "w.type_as(torch.ones(1, dtype=torch.int64))", "(w > 1).any()"),
)


@pytest.mark.parametrize("text", NO_SLOPES)
def test_truths_and_whole_numbers_pass_no_gradient(text: str, tmp_path: Path) -> None:
    beside(SLOPES.format(made=text), tmp_path)


COPIES = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5, -2.25, 3.75]))
    def forward(self, x):
        weight = {copy}
        {change}
        return x * weight
net = Net()
made = []
for x in (torch.ones(2, 3), torch.arange(6.0).view(2, 3)):
    loss = net(x).pow(2).sum()
    loss.backward()
    made += [loss.detach(), net.weight.grad.clone(), net.weight.detach()]
    net.zero_grad()
"""


@pytest.mark.parametrize("change", ["", "weight[0] = 2.0", "weight *= 2"])
@pytest.mark.parametrize("copy", ["self.weight.clone()", "torch.clone(self.weight)"])
def test_gradients_pass_the_copy_of_a_weight(copy: str, change: str, tmp_path: Path) -> None:
    beside(COPIES.format(copy=copy, change=change), tmp_path)
