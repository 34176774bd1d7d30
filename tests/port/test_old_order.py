"""``x.add_(alpha, y)``: the number in front of the tensors, as torch up to 1.4 had it."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = """import torch
from torch import nn
made = []
net, mean = nn.Linear(2, 2), nn.Linear(2, 2)
for p in net.parameters():
    p.data.fill_(0.5)
for p in mean.parameters():
    p.data.fill_(0.25)
t, d = torch.tensor([1.0, 2.0, 4.0]), 0.9
"""
SPELT = {
    "a teacher": (
        "for m, p in zip(mean.parameters(), net.parameters()):\n"
        "    m.data.mul_(d).add_(1 - d, p.data)\n"
        "made += [*mean.parameters()]\n"
    ),
    "weights": (
        "for p in net.parameters():\n    p.data.add_(d, p.data * 2)\n"
        "    p.data.sub_(2 * d, p.data * 3)\nmade += [*net.parameters()]\n"
    ),
    "Adam by hand": (
        "first, second = torch.zeros(3), torch.zeros(3)\n"
        "first.mul_(d).add_(1 - d, t)\nsecond.mul_(d).addcmul_(1 - d, t, t)\n"
        "made += [first, second, torch.zeros(3).addcdiv_(-0.1, first, second.sqrt() + 1)]\n"
    ),
    "plain": "made += [t.add(2, t), t.sub(0.5, t), t.addcmul(0.5, t, t), t.addcdiv(2, t, t)]\n",
    "of a name for values": (
        "p = nn.Parameter(torch.ones(3))\nheld = p.data\nmade += [held.add(0.5, t)]\n"
    ),
    "functions": (
        "made += [torch.add(t, 2, t), torch.sub(t, d, t), torch.addcmul(t, d, t, t)]\n"
        "made += [torch.addcdiv(t, -0.5, t, t), torch.addcmul(t, t, t, value=3)]\n"
    ),
    "of today": "made += [t.add(t, alpha=2), t.addcmul(t, t), torch.add(t, t), t.addcdiv(t, t)]\n",
}


@pytest.mark.filterwarnings("ignore:This overload")
@pytest.mark.parametrize("body", SPELT.values(), ids=SPELT)
def test_the_number_comes_behind_the_tensors(body, tmp_path):
    beside(HEAD + body, tmp_path)


@pytest.mark.parametrize(
    "line", ["meter.add(3, t)", "board.add(t, t)", "t.add(t)", "seen.sub(1, 2)"]
)
def test_methods_of_other_things_keep_their_order(line):
    body = f"import meters\nmeter, board, seen = meters.make()\n{line}\n"
    assert line.partition("(")[2] in ported(HEAD + body).text


def test_what_a_call_gives_may_be_called():
    found = ported("import torch\nx = torch.nn.L1Loss()(a.add(b), b)\n")
    assert not found.failures
