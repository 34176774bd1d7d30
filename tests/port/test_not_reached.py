"""Gradients of a loss: parameters that it does not reach have none; either of two scalers."""

from __future__ import annotations

import pytest

from mpcore.errors import MpcoreWarning

from .ports import beside, loaded, ported

SCRIPT = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 2)
        self.other = nn.Linear(3, 2)
        self.last = nn.Linear(2, 1)
        self.unused = nn.Parameter(torch.ones(3))
    def forward(self, x, first):
        return self.last(self.first(x) if first else self.other(x))
net, made = Net(), []
with torch.no_grad():
    for p in net.parameters():
        p.fill_(0.3)
    net.last.weight.zero_()
x = torch.linspace(-1.0, 1.0, 12).view(4, 3)
opt = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1)
def train(net, opt):
    for i in range(4):
        opt.zero_grad()
        loss = net(x, i < 2).pow(2).mean() + net.last.bias.sum()
        loss.backward()
        made.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1))
        made.extend([p.grad is None for p in net.parameters()])
        opt.step()
train(net, opt)
made += [p.detach() for p in net.parameters()]
"""


@pytest.mark.parametrize(
    "made",
    ["AdamW(", "Adam(", "SGD("],
)
def test_what_a_loss_does_not_reach_stays(made, tmp_path):
    beside(SCRIPT.replace("AdamW(", made), tmp_path)


OWN_STEP = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 2)
        self.other = nn.Linear(3, 2)
    def forward(self, x):
        return self.first(x)
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in [torch.ones(4, 3)] * 2:
    opt.zero_grad()
    with torch.autocast("cuda"):
        loss = net(x).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
"""


def test_a_step_of_mindspores_form_names_what_decays_and_is_not_reached(tmp_path):
    text = ported(OWN_STEP).text
    assert "train_cell(" in text
    with pytest.warns(MpcoreWarning, match=r"does not reach other\.weight, other\.bias \(2 of 4\)"):
        loaded(text, tmp_path)


@pytest.mark.parametrize(
    "other",
    [("AdamW(net.parameters(), lr", "Adam(net.parameters(), lr"), ("self.other =", "other =")],
)
def test_a_step_without_such_says_nothing(other, tmp_path):
    loaded(ported(OWN_STEP.replace(*other)).text, tmp_path)


TWO_SCALERS = """import torch
from torch import nn
class Scaler:
    def __init__(self, scale):
        self.inner = torch.amp.GradScaler("cpu", init_scale=scale)
    def __call__(self, loss, opt, params):
        self.inner.scale(loss).backward()
        self.inner.unscale_(opt)
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0)
        self.inner.step(opt)
        self.inner.update()
        return norm
one, other, made = nn.Linear(2, 2), nn.Linear(2, 2), []
with torch.no_grad():
    for p in [*one.parameters(), *other.parameters()]:
        p.fill_(0.3)
x = torch.ones(3, 2)
def train(net, opt, scaler):
    for _ in range(3):
        opt.zero_grad()
        loss = net(x).pow(2).mean()
        made.append(scaler(loss, opt, net.parameters()))
first, second = Scaler(1024.0), Scaler(65536.0)
train(one, torch.optim.SGD(one.parameters(), lr=0.1), first)
train(other, torch.optim.SGD(other.parameters(), lr=0.1), second)
"""


def test_a_loss_may_have_either_of_two_scalers(tmp_path):
    beside(TWO_SCALERS, tmp_path)


LOSSES = {
    "on a shared line": "opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()",
    "with words": (
        "opt.zero_grad()\n    F.cross_entropy(net(x), y).backward(retain_graph=True)\n"
        "    opt.step()"
    ),
    "under a condition": (
        "opt.zero_grad()\n    if i >= 0: net(x).pow(2).mean().backward()\n    opt.step()"
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_loss_without_a_name_runs_the_network_that_there_is(case, tmp_path):
    head = (
        "import torch\nimport torch.nn.functional as F\nmade = []\nnet = torch.nn.Linear(3, 2)\n"
        "for p in net.parameters():\n    p.data.fill_(0.3)\n"
        "x, y = torch.linspace(-1.0, 1.0, 12).view(4, 3), torch.tensor([0, 1, 1, 0])\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.1)\nfor i in range(3):\n    "
    )
    end = "\nmade += [p.detach() for p in net.parameters()]\n"
    beside(head + LOSSES[case] + end, tmp_path)
