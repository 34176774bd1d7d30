"""Ports to MindSpore: objects that are asked whether they are networks; optimizers are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import beside

if TYPE_CHECKING:
    from pathlib import Path

ASKED = """import torch
from torch import nn
class Trainer:
    def __init__(self):
        self.net = nn.Linear(2, 2)
        self.plain = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.adam = torch.optim.Adam(self.net.parameters(), lr=0.1, amsgrad=True)
        self.rates = torch.optim.lr_scheduler.StepLR(self.plain, 2)
        self.loss, self.more = nn.MSELoss(), nn.ModuleList([nn.Tanh()])
        self.number = 3
made = [[isinstance(held, {kinds}) for name, held in vars(Trainer()).items()]]
def saved(obj):
    return 1 if isinstance(obj, {kinds}) else 2
made += [saved(held) for held in vars(Trainer()).values()]
"""


@pytest.mark.parametrize("kinds", ["nn.Module", "(int, torch.nn.Module)"])
def test_an_optimizer_is_no_network(kinds: str, tmp_path: Path) -> None:
    beside(ASKED.replace("{kinds}", kinds), tmp_path)
