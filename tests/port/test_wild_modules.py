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


WHOLE = """import math, torch
def whole(numbers):
    return torch.tensor(numbers)
made = [{made}]
"""
OF_WHOLE = (
    *("whole(3).log()", "torch.exp(whole([0, 1]))", "torch.sigmoid(whole([0, 1]))"),
    *("whole([1, 4]).rsqrt()", "torch.atan(whole(1))", "torch.sin(whole([True, False]))"),
    "torch.linspace(torch.log(whole(2)), torch.log(whole(9)), 4)",
)
SIZES = (
    "torch.randint(0, 5, [2, 3])",
    "torch.randint(5, sizes)",
    "torch.randint(high=5, size=sizes)",
)


@pytest.mark.parametrize("text", OF_WHOLE)
def test_functions_take_whole_numbers(text: str, tmp_path: Path) -> None:
    beside(WHOLE.format(made=text), tmp_path)


@pytest.mark.parametrize("text", SIZES)
def test_whole_numbers_are_drawn_by_lists_of_sizes(text: str, tmp_path: Path) -> None:
    beside(f"import torch\nsizes = [2, 3]\nmade = [list({text}.shape)]\n", tmp_path)
