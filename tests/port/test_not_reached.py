"""Gradients of a loss: parameters that it does not reach have none; either of two scalers."""

from __future__ import annotations

import pytest

from .ports import beside

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
