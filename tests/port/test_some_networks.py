"""Steps that clip or zero some of their networks alone; outputs that are handed to a loss."""

from __future__ import annotations

import pytest

from .ports import beside

HEAD = """import torch
from torch import nn
import torch.nn.functional as F
made = []
x = torch.linspace(-1.0, 1.0, 24).view(6, 4)
y = torch.tensor([0, 1, 1, 0, 1, 0])
def filled(net):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
    return net
a, b = filled(nn.Linear(4, 4)), filled(nn.Linear(4, 2))
"""
LOSS = "loss = 50 * F.cross_entropy(b(a(x)), y)"
CLIP = "torch.nn.utils.clip_grad_norm_"
BOTH = "list(a.parameters()) + list(b.parameters())"
GROUPS = '[{"params": a.parameters()}, {"params": b.parameters(), "lr": 0.1}]'


def loop(params: str, clip: str, zero: str = "opt.zero_grad()") -> str:
    return f"""
opt = torch.optim.SGD({params}, lr=0.5)
for turn in range(3):
    {zero}
    {LOSS}
    loss.backward()
    {clip}
    opt.step()
    made.append(loss.detach())
"""


CLIPS = {
    "one of two": (BOTH, f"{CLIP}(a.parameters(), 0.25)"),
    "each by itself": (BOTH, f"{CLIP}(a.parameters(), 0.2); {CLIP}(b.parameters(), 0.3)"),
    "one of two groups": (GROUPS, "torch.nn.utils.clip_grad_value_(a.parameters(), 0.01)"),
    "all, put together twice": (BOTH, f"{CLIP}({BOTH}, 0.25)"),
}


@pytest.mark.parametrize(("params", "clip"), CLIPS.values(), ids=CLIPS)
def test_what_is_clipped_is_clipped_alone(params, clip, tmp_path):
    beside(HEAD + loop(params, clip), tmp_path)


def test_parameters_by_one_name_are_all(tmp_path):
    text = beside(
        f"{HEAD}params = {BOTH}\n" + loop("params", f"{CLIP}(params, 0.2)"), tmp_path
    ).text
    assert "clip_by_global_norm" in text


IN_A_FUNCTION = f"""
def train(a, b, opt):
    for turn in range(3):
        opt.zero_grad()
        {LOSS}
        loss.backward()
        {CLIP}(a.parameters(), 0.25)
        opt.step()
        made.append(loss.detach())
def main():
    opt = torch.optim.SGD({BOTH}, lr=0.5)
    train(a, b, opt)
main()
"""
IN_A_CLASS = f"""
class Trainer:
    def __init__(self):
        self.a, self.b = a, b
        self.opt = torch.optim.SGD(
            list(self.a.parameters()) + list(self.b.parameters()), lr=0.5
        )
    def train(self):
        for turn in range(3):
            self.opt.zero_grad()
            loss = 50 * F.cross_entropy(self.b(self.a(x)), y)
            loss.backward()
            {CLIP}(self.b.parameters(), 0.25)
            self.opt.step()
            made.append(loss.detach())
Trainer().train()
"""


@pytest.mark.parametrize("script", [IN_A_FUNCTION, IN_A_CLASS], ids=["function", "class"])
def test_an_optimizer_of_another_function_has_more(script, tmp_path):
    beside(HEAD + script, tmp_path)


ZEROS = {"one of two": "b.zero_grad()", "both": "a.zero_grad(); b.zero_grad()"}


@pytest.mark.parametrize("zero", ZEROS.values(), ids=ZEROS)
def test_gradients_of_a_network_that_is_not_zeroed_add_up(zero, tmp_path):
    beside(HEAD + loop(BOTH, "pass", zero), tmp_path)


COMPUTE = """
opt = torch.optim.SGD(list(a.parameters()) + list(b.parameters()), lr=1.0)
def compute(out, y):
    loss = F.cross_entropy(b(out), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()
"""
CALLED = """
class Compute:
    def __init__(self, net, criterion, opt):
        self.net, self.criterion, self.opt = net, criterion, opt
    def __call__(self, out, y):
        out = self.net(out)
        loss = self.criterion(out, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()
compute = Compute(b, nn.CrossEntropyLoss(), torch.optim.SGD(b.parameters(), lr=1.0))
"""
HANDED = {
    "a name": COMPUTE + "for turn in range(3):\n    out = a(x)\n    compute(out, y)\n",
    "a call": COMPUTE + "for turn in range(3):\n    compute(a(x), y)\n",
    "by its name": COMPUTE + "for turn in range(3):\n    compute(y=y, out=a(x).relu())\n",
    "through a function": (
        COMPUTE + "def train(out):\n    return compute(out * 2, y)\n"
        "for turn in range(3):\n    train(a(x))\n"
    ),
    "to an object": CALLED + "for turn in range(3):\n    out = a(x)\n    compute(out, y)\n",
    "to an object that is handed on": (
        CALLED + "def epoch(model, compute):\n    for turn in range(3):\n        out = model(x)\n"
        "        compute(out, y)\nepoch(a, compute)\n"
    ),
}


@pytest.mark.parametrize("script", HANDED.values(), ids=HANDED)
def test_an_output_that_is_handed_in_goes_through_what_is_recorded(script, tmp_path):
    left = "made += [p.detach() for net in (a, b) for p in net.parameters()]\n"
    edits = beside(HEAD + script + left, tmp_path).edits
    found = [edit.reason for edit in edits if "record()" in edit.reason]
    assert len(found) == 1
    assert found[0].startswith("a network makes `out` where this function is called: port.record()")


KEPT = {
    "data": COMPUTE + "for turn in range(3):\n    made.append(torch.tensor(compute(x, y)))\n",
    "detached": (
        COMPUTE
        + "for turn in range(3):\n    made.append(torch.tensor(compute(a(x).detach(), y)))\n"
    ),
    "detached before": (
        COMPUTE + "for turn in range(3):\n    out = a(x).detach()\n"
        "    made.append(torch.tensor(compute(out, y)))\n"
    ),
    "without gradients": (
        COMPUTE + "for turn in range(3):\n    with torch.no_grad():\n        out = a(x)\n"
        "    made.append(torch.tensor(compute(out, y)))\n"
    ),
    "detached inside": (
        COMPUTE.replace("b(out)", "b(out.detach())")
        + "for turn in range(3):\n    out = a(x)\n    made.append(torch.tensor(compute(out, y)))\n"
    ),
}


@pytest.mark.parametrize("script", KEPT.values(), ids=KEPT)
def test_what_has_no_gradients_may_be_handed_in(script, tmp_path):
    only = script.replace("list(a.parameters()) + list(b.parameters())", "b.parameters()")
    beside(HEAD + only, tmp_path)
