"""Losses that a function makes with layers of its own: of what is around it, or of its file."""

from __future__ import annotations

import pytest

from .ports import beside

SCRIPT = """
import functools
import torch
import torch.nn.functional as F
from torch import nn
made = []

class Centers(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.ones(2, 3))
    def forward(self, x, y):
        return (x - self.centers[y]).pow(2).sum()

class Losses:
    def __init__(self, net):
        self.net = net
    def both(self, out, y):
        return F.cross_entropy(out, y) + self.net(out, y)

def with_net(net, out, y):
    return F.cross_entropy(out, y) + net(out, y)

def make_loss(net):
    def inner(out, y):
        return net(out, y)
    def loss_func(out, y):
        return F.cross_entropy(out, y) + inner(out, y)
    return loss_func

held = Centers()
def of_the_file(out, y):
    return F.cross_entropy(out, y) + held(out, y)

def train(model, center, loss_fn, batches, optimizer, optimizer_center):
    for x, y in batches:
        optimizer.zero_grad()
        optimizer_center.zero_grad()
        out = model(x)
        loss = loss_fn(out, y)
        loss.backward()
        optimizer.step()
        for param in center.parameters():
            param.grad.data *= 2.0
        optimizer_center.step()
        made.append(loss.detach())

model = nn.Linear(2, 3)
nn.init.constant_(model.weight, 0.5)
nn.init.constant_(model.bias, 0.1)
center = CENTER
batches = [(torch.tensor([[1.0, 2.0], [0.5, 1.0]]), torch.tensor([0, 1]))] * 3
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(model, center, LOSS, batches, optimizer, torch.optim.SGD(center.parameters(), lr=0.1))
made.append(center.centers.detach())
"""


@pytest.mark.parametrize(
    ("center", "loss"),
    [
        ("Centers()", "make_loss(center)"),
        ("Centers()", "functools.partial(with_net, center)"),
        ("Centers()", "Losses(center).both"),
        ("held", "of_the_file"),
    ],
)
def test_layers_that_a_loss_function_has_of_its_own_are_trained(center, loss, tmp_path):
    beside(SCRIPT.replace("LOSS", loss).replace("CENTER", center), tmp_path)
