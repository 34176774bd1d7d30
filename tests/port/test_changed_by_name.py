"""Tensors that are changed in place by a name, where something else holds them."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = """import copy
from collections import OrderedDict
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.bn = nn.BatchNorm1d(2)
        self.scale = nn.Parameter(torch.ones(2))
def build(value):
    net = Net()
    for p in net.parameters():
        nn.init.constant_(p, value)
    return net
net, other = build(0.1), build(0.3)
other.bn.running_mean.fill_(2)
"""
MADE = "made = [net.fc.weight, net.fc.bias, net.scale, net.bn.running_mean, net.bn.weight]\n"
STATES = {
    "an entry": "net.state_dict()['scale'].copy_(torch.zeros(2))\n",
    "an entry, halved": "net.state_dict()['scale'].mul_(0.5)\nnet.state_dict()['fc.bias'] *= 3\n",
    "a name's entry": (
        "sd = net.state_dict()\nfor k in sd:\n    v = sd[k]\n"
        "    if v.dtype == torch.float32:\n        v.mul_(0.5)\n"
    ),
    "a name's items": (
        "sd = net.state_dict()\nfor k, v in sd.items():\n"
        "    if v.dtype == torch.float32:\n        v *= 0.5\n"
    ),
    "a name's values": (
        "sd = net.state_dict()\nfor v, w in zip(sd.values(), other.state_dict().values()):\n"
        "    v.copy_(w)\n"
    ),
    "two names": (
        "mine, own = net.state_dict(), other.state_dict()\nfor k in mine.keys():\n"
        "    mine[k].data.copy_(own[k].data)\n"
    ),
    "an attribute": (
        "class Average:\n    def __init__(self, net):\n        self.state = net.state_dict()\n"
        "    def update(self, other):\n        for k, v in self.state.items():\n"
        "            v.copy_(other.state_dict()[k])\nAverage(net).update(other)\n"
    ),
}
NAMES = {
    "parameters": "with torch.no_grad():\n    for p in net.parameters():\n        p -= 0.1 * p\n",
    "a list of them": (
        "held = [p for p in net.parameters()]\nwith torch.no_grad():\n"
        "    for p in held:\n        p *= 0.5\n"
    ),
    "data": "w = net.fc.weight.data\nw *= 2\n",
    "data, by a method": "w = net.fc.weight.data\nw.mul_(2)\n",
    "a weight": "with torch.no_grad():\n    w = net.fc.weight\n    w.clamp_(-0.05, 0.05)\n",
    "a mask": "net.fc.weight.data[net.fc.weight.data > 0] = 3.0\n",
    "a mask of a name": "for p in net.parameters():\n    w = p.data\n    w[w > 0.05] = 0\n",
    "kept values": (
        "kept = [p.clone().detach() for p in net.parameters()]\n"
        "for s, p in zip(kept, other.parameters()):\n    s -= 0.5 * (s - p.detach())\n"
        "for s, p in zip(kept, net.parameters()):\n    p.data.copy_(s.data)\n"
    ),
    "a dictionary's": (
        "kept = {n: p.data.clone() for n, p in net.named_parameters()}\n"
        "for n, p in other.named_parameters():\n    s = kept[n]\n    s -= 0.5 * (s - p.data)\n"
        "net.load_state_dict(kept, strict=False)\n"
    ),
    "a dictionary's items": (
        "kept = {n: p.data.clone() for n, p in net.named_parameters()}\nown = other.state_dict()\n"
        "for n, s in kept.items():\n    s.mul_(0.5).add_(own[n], alpha=0.5)\n"
        "net.load_state_dict(kept, strict=False)\n"
    ),
    "gradients": (
        "for p in net.parameters():\n    p.grad = torch.ones_like(p)\n"
        "for p in net.parameters():\n    g = p.grad\n    g *= 0.5\n"
        "held = [p.grad for p in net.parameters()]\nfor g in held:\n    g.mul_(3)\n"
        "for p in net.parameters():\n    p.data = p.grad.clone()\n"
    ),
}


@pytest.mark.parametrize("case", STATES)
def test_a_state_is_the_networks_own(case: str, tmp_path: object) -> None:
    beside(HEAD + STATES[case] + MADE, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", NAMES)
def test_what_holds_a_tensor_sees_it_change(case: str, tmp_path: object) -> None:
    beside(HEAD + NAMES[case] + MADE, tmp_path)  # type: ignore[arg-type]


def test_what_nothing_else_holds_gets_another_value() -> None:
    plain = "total = 0\nfor i, p in enumerate(net.parameters()):\n    i += 1\n    total += i\n"
    alone = "w = net.fc.weight.data.clone()\nw *= 2\nv = net.fc.weight.data\nmade = [w, v]\n"
    found = ported(HEAD.replace("fill_(2)", "sum()") + plain + alone)
    assert "port.put" not in found.text
    assert "live_state" not in found.text


def test_a_state_that_is_only_saved_is_a_copy() -> None:
    found = ported(HEAD + "best = net.state_dict()\nn = 0\nn += 1\nmade = [best]\n")
    assert "port.state_dict(net)" in found.text
