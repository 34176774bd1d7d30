"""Ports to MindSpore: a parameter that an optimizer is given twice moves as in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import NET, beside

if TYPE_CHECKING:
    from pathlib import Path

STEPS = """import torch
from torch import nn
made = []
{net}
def trained(net, opt, steps):
    for i in range(steps):
        opt.zero_grad()
        loss = (net(torch.ones(1, 3)) ** 2).sum()
        loss.backward()
        opt.step()
        made.append(net.weight.detach().clone())
for settings in {settings}:
    net, other = Net(), Net()
    opt = torch.optim.SGD([*net.parameters(), *net.parameters()], lr=0.05, **settings)
    trained(net, opt, 3)
    other.load_state_dict(net.state_dict())
    both = list(other.parameters()) + list(other.parameters())
    again = torch.optim.SGD(both, lr=0.05, **settings)
    again.load_state_dict(opt.state_dict())
    trained(other, again, 3)
net = Net()
opt = torch.optim.SGD([*net.parameters(), *net.parameters()], lr=0.05, momentum=0.9)
trained(net, opt, 4)
"""
SETTINGS = [
    {},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.9, "dampening": 0.3},
    {"momentum": 0.9, "nesterov": True},
]


@pytest.mark.filterwarnings("ignore")  # torch warns of it, and the port
def test_momentum_begins_anew_at_both_first_moves(tmp_path: Path) -> None:
    beside(STEPS.format(net=NET, settings=SETTINGS), tmp_path)
