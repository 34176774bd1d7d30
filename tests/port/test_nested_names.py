"""Names of nested functions beside those that a loss's own function shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import beside

if TYPE_CHECKING:
    from pathlib import Path

NESTED = """import torch
from torch import nn
made = []
net = nn.Linear(3, 2)
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
def train(net, kinds):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    def shown():
        kind = torch.zeros(3)
        return kind
    for turn in range(3):
        kind, extra = None, {}
        if kinds:
            kind = torch.ones(3) * turn
            extra["by"] = kind
        loss = (net(torch.ones(4, 3) * extra.get("by", 2.0)) + shown().sum()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.append(loss.item())
train(net, True)
train(net, False)
made += [p.detach() for p in net.parameters()]
"""


def test_a_nested_functions_own_name_binds_none_of_the_function_around_it(tmp_path: Path) -> None:
    beside(NESTED, tmp_path)
