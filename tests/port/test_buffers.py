"""Buffers that a network sets anew, what of them is its state, weights that are flattened."""

from __future__ import annotations

import pytest

from .ports import beside, ported

NET = """import torch
from torch import nn
made = []
class Net(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lstm = nn.LSTM(d, d, batch_first=True)
        self.register_buffer("step", torch.zeros(1, dtype=torch.long))
        self.register_buffer("mean", torch.zeros(d), persistent=False)
        self.register_buffer(name="count", tensor=torch.tensor(0.0))
        self.layers = nn.ModuleList([nn.GRU(d, d)])
    def forward(self, x):
        {lines}
        return x * (self.mean + 1)
net = Net(4)
x = torch.linspace(0.0, 1.0, 24).view(2, 3, 4)
made += [net(x), net(x)]
{behind}
made += [net.step, net.mean, net.count, torch.tensor(len(net.state_dict()))]
net.load_state_dict(net.state_dict())
"""
SET = {
    "added to": "self.step += 1",
    "made anew": "self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 1))",
    "in one of two cases": "self.count = self.count + 2 if self.training else self.count",
    "by its name": 'setattr(self, "count", self.count + x.size(0))',
    "without gradients": "\n        ".join(
        ["with torch.no_grad():", "    self.mean = x.detach().mean((0, 1))"]
    ),
}


def script(lines: str, behind: str = "") -> str:
    return NET.replace("{lines}", lines).replace("{behind}", behind)


@pytest.mark.parametrize("lines", SET.values(), ids=SET)
def test_a_buffer_is_set_anew(lines, tmp_path):
    beside(script(lines), tmp_path)


def test_a_buffer_is_set_from_outside(tmp_path):
    beside(script("pass", "net.step = torch.tensor([5])"), tmp_path)


def test_several_in_one_line_are_named():
    found = ported(script("self.step, self.count = self.step + 1, self.count"))
    assert any("several in one line" in edit.reason for edit in found.edits)


FLAT = {
    "a line": "self.lstm.flatten_parameters()",
    "a list": "[layer.flatten_parameters() for layer in self.layers]",
    "a loop": "for layer in self.layers:\n            layer.flatten_parameters()",
}


@pytest.mark.parametrize("lines", FLAT.values(), ids=FLAT)
def test_weights_are_not_flattened(lines, tmp_path):
    assert "flatten_parameters" not in beside(script(lines), tmp_path).text


def test_a_method_of_the_scripts_own_stays():
    own = "class Own:\n    def flatten_parameters(self):\n        return 3\n"
    text = ported("import torch\n" + own + "x = Own().flatten_parameters()\n").text
    assert "Own().flatten_parameters()" in text
