"""What clouds of points and a mean teacher do: repeats by a list, meters in a loss's branch."""

from __future__ import annotations

import numpy as np
import pytest

import mpcore_port_runtime as port

from .ports import beside, ported

HEAD = """import numpy as np
import torch
from torch import nn
made = []
x = torch.arange(6.0).view(2, 3)
"""
REPEATS = {
    "a list": "made.append(x.repeat([2, 1]))\n",
    "a list of before": "shape = [1] * 2\nshape[0] = 3\nmade.append(x.repeat(shape))\n",
    "a number": "n = 2\nmade += [x[0].repeat(2), x[0].repeat(n)]\n",
    "a size": "made += [x.repeat(torch.Size([1, 2])), x.repeat((2, 2)), x.repeat(2, 1)]\n",
    "an array": "a = np.arange(3)\nmade += [torch.tensor(a.repeat(2)), x.repeat(*[1, 2])]\n",
}


@pytest.mark.parametrize("body", REPEATS.values(), ids=REPEATS)
def test_tensors_are_repeated_as_a_list_or_a_number_says(body, tmp_path):
    beside(HEAD + body, tmp_path)


def test_what_is_no_tensor_repeats_itself():
    assert port.repeat(np.arange(2), 2).tolist() == [0, 0, 1, 1]


def test_determinants(tmp_path):
    body = "m = x[:, :2] + torch.eye(2)\nmade += [torch.det(m), *torch.slogdet(m), m.det()]\n"
    beside(HEAD + body, tmp_path)


def test_a_tensor_is_a_variable(tmp_path):
    body = """
from torch.autograd import Variable
for one in (x, (x, x), [1]):
    if isinstance(one, Variable):
        made.append(1.0)
    elif isinstance(one, (tuple, torch.autograd.Variable)):
        made.append(2.0)
    else:
        made.append(3.0)
made.append(Variable(x))
"""
    beside(HEAD + body, tmp_path)


TEACHER = """
class Meter:
    def __init__(self):
        self.val = self.sum = self.count = 0
    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
    @property
    def avg(self):
        return self.sum / self.count
    def __format__(self, format):
        return "{self.val:{format}} ({self.avg:{format}})".format(self=self, format=format)
    def text(self, width):
        return f"{self.val:{width}}"
meters = {"loss": Meter(), "extra": Meter(), "right": Meter()}
net = nn.Linear(3, 2)
for p in net.parameters():
    p.data.fill_(0.25)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
weight = 0.5
for i in range(2):
    out = net(x)
    loss = (out**2).mean()
    if weight:
        extra = weight * out.abs().mean()
        meters["extra"].update(extra.item())
    else:
        extra = 0
    loss = loss + extra
    meters["loss"].update(loss.item())
    meters["right"].update((out > 0).float().sum(), 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    text = "{meters[loss]:.4f} {meters[right]:.3f}".format(meters=meters)
    made += [float(part.strip("()")) for part in text.split()]
    made += [float(meters["right"].text(".2f")), meters["extra"].avg]
made += [*net.parameters()]
"""


def test_a_meter_in_a_losss_branch_is_no_step(tmp_path):
    found = beside(HEAD + TEACHER, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


GAME = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def play(env, state):
    for i in range(3):
        scores = []
        for t in range(4):
            action = net(state).sum()
            state, reward = env.step(action)
            scores.append(action * reward)
        loss = -torch.stack(scores).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_a_games_step_is_no_optimizers():
    found = ported(HEAD + "net = nn.Linear(3, 2)\n" + GAME)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
