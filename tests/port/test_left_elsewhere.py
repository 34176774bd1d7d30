"""Outputs that a loss finds elsewhere, lists that a loss fills, forward of what is no network."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = """import torch
from torch import nn
import torch.nn.functional as F
made = []
x = torch.linspace(-1.0, 1.0, 24).view(2, 3, 4)
y = torch.tensor([0, 1, 1, 0, 1, 0])
def filled(net):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
    return net
net, head = filled(nn.Linear(4, 4)), filled(nn.Linear(4, 2))
opt = torch.optim.SGD(list(net.parameters()) + list(head.parameters()), lr=0.5)
"""
STEP = """
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.detach())
"""
OF_A_CLASS = """
class Trainer:
    def __init__(self):
        self.net, self.head, self.outs = net, head, []
    def encode(self):
        {left}
    def finish(self):
        loss = F.cross_entropy(self.head({read}).view(-1, 2), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        made.append(loss.detach())
trainer = Trainer()
for turn in range(3):
    trainer.encode()
    trainer.finish()
"""
OF_THE_MODULE = """
out, outs = None, []
def encode():
    global out
    {left}
def finish():
    loss = F.cross_entropy(head({read}).view(-1, 2), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.detach())
for turn in range(3):
    encode()
    finish()
"""


def of_class(left: str, read: str) -> str:
    return HEAD + OF_A_CLASS.replace("{left}", left).replace("{read}", read)


def of_module(left: str, read: str) -> str:
    return HEAD + OF_THE_MODULE.replace("{left}", left).replace("{read}", read)


GENERATED = f"""
def outputs():
    for turn in range(3):
        yield net(x)
for out in outputs():
    loss = F.cross_entropy(head(out).view(-1, 2), y){STEP}
"""
LEFT = {
    "an attribute": (of_class("self.out = self.net(x)", "self.out"), "self.out"),
    "a part": (of_class("self.out, self.n = self.net(x), 3", "self.out * 2"), "self.out"),
    "a list": (of_class("self.outs.append(self.net(x))", "self.outs[-1]"), "self.outs"),
    "a global": (of_module("out = net(x)", "out"), "out"),
    "a list of the module": (of_module("outs.append(net(x))", "outs[-1]"), "outs"),
    "a generator": (HEAD + GENERATED, "out"),
}


@pytest.mark.parametrize(("script", "name"), LEFT.values(), ids=LEFT)
def test_what_a_network_leaves_elsewhere_goes_through_what_is_recorded(script, name, tmp_path):
    edits = beside(script, tmp_path).edits
    found = [edit.reason for edit in edits if edit.kind == "unproven" and "record()" in edit.reason]
    assert [one.partition(":")[0] for one in found] == [
        f"a network makes `{name}` in another function"
    ]


ONLY = "list(net.parameters()) + list(head.parameters())"
VALUES = {
    "detached there": of_class("self.out = self.net(x).detach()", "self.out"),
    "detached here": of_class("self.out = self.net(x)", "self.out.detach()"),
    "without gradients": of_class(
        "with torch.no_grad():\n            self.out = self.net(x)", "self.out"
    ),
    "another's name": of_module("local = net(x)", "x").replace("global out", "pass"),
}


@pytest.mark.parametrize("script", VALUES.values(), ids=VALUES)
def test_values_may_be_left_elsewhere(script, tmp_path):
    other = script.replace("nn.Linear(4, 4)), filled", "nn.Linear(4, 4)), filled")
    beside(other.replace(ONLY, "head.parameters()"), tmp_path)


MADE_HERE = """
class Trainer:
    def __init__(self):
        self.net, self.head = net, head
    def forward_step(self):
        self.out = self.net(x)
        return self.out, F.cross_entropy(self.head(self.out).view(-1, 2), y)
    def train(self):
        self.out, self.loss = self.forward_step()
        opt.zero_grad()
        self.loss.backward()
        opt.step()
        made.append(self.loss.detach())
    def test(self):
        self.out, self.loss = self.forward_step()
trainer = Trainer()
for turn in range(3):
    trainer.train()
"""


def test_what_a_function_makes_itself_may_be_left_elsewhere_too(tmp_path):
    beside(HEAD + MADE_HERE, tmp_path)


FILLED = {
    "a list": ("outs = []", "outs.append(head(net(x[:, i])))", "torch.stack(outs, 1)"),
    "a longer list": ("outs = []", "outs += [head(net(x[:, i]))]", "torch.stack(outs, 1)"),
    "a dictionary": (
        "outs = {}",
        "outs[i] = head(net(x[:, i]))",
        "torch.stack([*outs.values()], 1)",
    ),
    "a tensor": ("outs = torch.zeros(2, 3, 2)", "outs[:, i] = head(net(x[:, i]))", "outs"),
}


@pytest.mark.parametrize(("start", "fill", "read"), FILLED.values(), ids=FILLED)
def test_a_loss_fills_what_is_made_in_front_of_it(start, fill, read, tmp_path):
    script = f"""
for turn in range(3):
    {start}
    for i in range(3):
        {fill}
    loss = F.cross_entropy({read}.view(-1, 2), y){STEP}
"""
    beside(HEAD + script, tmp_path)


FORWARD = """
class Plain:
    def forward(self, a):
        return a * 2
class Further(Plain):
    def run(self, a):
        return self.forward(a)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = net
    def forward(self, a):
        return self.layer(a)
    def twice(self, a):
        return self.forward(a) + self(a)
made += [Plain().forward(x), Further().run(x), Net().twice(x).detach()]
"""


def test_forward_of_no_network_keeps_its_name(tmp_path):
    text = beside(HEAD + FORWARD, tmp_path).text
    assert text.count("def forward(") == text.count("def construct(") == 1


def test_forward_is_called_as_it_is_named():
    script = "import torch\nfrom base import Base\nclass Model(Base):\n    def forward(self):\n"
    script += "        self.y = torch.ones(2)\n    def step(self):\n        self.forward()\n"
    text = ported(script).text
    assert "def construct(self)" in text
    assert "self.forward()\n\n    forward = construct" in text  # whatever its base calls it
