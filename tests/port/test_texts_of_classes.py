"""Ports to MindSpore: parts that are chosen by what Python says of their class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import beside

if TYPE_CHECKING:
    from pathlib import Path

CHOSEN = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.PReLU())
        self.up = nn.ConvTranspose2d(2, 2, 2)
        self.last = nn.ModuleList([nn.Linear(2, 3), nn.LayerNorm(3), nn.Dropout(0.1)])
    def forward(self, x):
        return self.first(x)
def asked(layer, word):
    return {asked}
made = []
for word in ["batchnorm", "norm", "conv", "linear", "container", "activation", "Net"]:
    made.append([asked(layer, word) for layer in Net().modules()])
kinds = [str(type(torch.ones(1))), str(nn.Parameter(torch.ones(1)).__class__), str(type(made))]
made += [kinds == [
    "<class 'torch.Tensor'>", "<class 'torch.nn.parameter.Parameter'>", "<class 'list'>"
]]
"""


@pytest.mark.parametrize(
    "asked",
    [
        "word in str(layer.__class__)",
        "str(type(layer)).find(word) != -1",
        "word in repr(type(layer)).lower()",
        "word in type(layer).__name__.lower()",
        "layer.__class__.__name__.lower().find(word) == 0",
    ],
)
def test_a_part_is_chosen_by_its_class(asked: str, tmp_path: Path) -> None:
    beside(CHOSEN.replace("{asked}", asked), tmp_path)
