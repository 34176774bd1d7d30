"""Names of nested functions beside those that a loss's own function shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import beside, ported

if TYPE_CHECKING:
    from pathlib import Path

NESTED = """import torch
from torch import nn
made = []
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)
    def forward(self, x, by=None):
        return self.head(x if by is None else x * by)
net = Net()
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
            if turn:
                kind[0] = 2.0
        loss = (net(torch.ones(4, 3), **extra) + shown().sum()).square().mean()
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


ACCELERATED = """from accelerate import Accelerator
import torch
def main(model, loader, kinds):
    accelerator = Accelerator()
    opt = torch.optim.Adam(model.parameters())
    model, opt, loader = accelerator.prepare(model, opt, loader)
    def shown():
        kind = torch.zeros(3)
        return kind
    for batch in loader:
        with accelerator.accumulate(model):
            kind, extra = None, {}
            if kinds:
                kind = batch[1]
                extra["kind"] = kind
            losses = model(batch[0], **extra)
            accelerator.backward(losses.mean())
            opt.step()
            opt.zero_grad()
"""


def test_such_a_name_costs_no_file() -> None:
    found = ported(ACCELERATED)
    assert "port.loss(" in found.text
    assert "nonlocal kind" not in found.text
