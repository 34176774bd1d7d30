"""Parts that a network is given by their names, and methods that a Cell has not."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = """import torch
from torch import nn
made = []
x = torch.linspace(-1.0, 1.0, 24).view(2, 3, 4)
def filled(net):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
    return net
"""
IN_A_LOOP = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(2):
            self.add_module("layer%d" % i, nn.Linear(4, 4))
        self.register_parameter("scale", nn.Parameter(torch.ones(4)))
        self.register_parameter("shift", None)
    def forward(self, x):
        for i in range(2):
            x = getattr(self, "layer%d" % i)(x)
        return x * self.scale if self.shift is None else x
net = filled(Net())
made += [net(x).detach(), torch.tensor(len(net.state_dict()))]
made.append(torch.tensor([len(name) for name, _ in net.named_children()]))
"""
IN_A_ROW = """
def block(norm):
    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("act", nn.ReLU())
    if norm:
        net.add_module("norm", nn.BatchNorm1d(3))
    return net
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = block(True), block(False)
    def forward(self, x):
        return self.second(self.first(x))
net = filled(Two())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for turn in range(2):
    opt.zero_grad()
    loss = net(x).pow(2).mean()
    loss.backward()
    opt.step()
    made.append(loss.detach())
made.append(torch.tensor([len(block(True)), len(list(net.parameters()))]))
"""
OF_A_ROW = """
class Layer(nn.Sequential):
    def __init__(self, d):
        super().__init__()
        self.add_module("norm", nn.LayerNorm(d))
        self.add_module("fc", nn.Linear(d, d))
    def forward(self, x):
        return torch.cat([x, super().forward(x)], 2)
made.append(filled(Layer(4))(x).detach())
"""


@pytest.mark.parametrize("script", [IN_A_LOOP, IN_A_ROW, OF_A_ROW], ids=["loop", "row", "of a row"])
def test_a_part_gets_its_name(script, tmp_path):
    beside(HEAD + script, tmp_path)


def test_what_a_cell_has_not_is_named():
    found = ported(HEAD + "net = nn.Linear(4, 4)\nnet.reset_parameters()\n").edits
    assert any("no method reset_parameters" in edit.reason for edit in found)
    own = "class Net(nn.Module):\n    def reset_parameters(self):\n        pass\n"
    found = ported(HEAD + own + "Net().reset_parameters()\n").edits
    assert not any("no method" in edit.reason for edit in found)


TAKEN = """
class Stack(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.cells = nn.ModuleList()
        self.phase = 0
        for i in range(n):
            self.cells += [nn.GRUCell(4, 4)]
    def forward(self, x):
        h = torch.zeros(x.size(0), 4)
        for cell in self.cells:
            h = cell(x, h)
        return h
    def get_parameters(self):
        return [{"params": self.cells.parameters()}]
class Sheet:
    def __init__(self):
        self.cells = [1, 2]
net = filled(Stack(2))
opt = torch.optim.SGD(net.get_parameters(), lr=0.1)
for turn in range(2):
    opt.zero_grad()
    loss = net(x.view(6, 4)).pow(2).mean()
    loss.backward()
    opt.step()
    made.append(loss.detach())
made += [torch.tensor([len(net.cells), len(net.state_dict())]), torch.tensor(Sheet().cells)]
"""


def test_names_that_a_cell_has_for_something_else(tmp_path):
    text = beside(HEAD + TAKEN, tmp_path).text
    assert "self.cells_ = " in text
    assert "Sheet().cells" in text
