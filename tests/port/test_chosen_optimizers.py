"""Optimizers that are taken out of a module by name, and names that hide imports."""

from __future__ import annotations

import pytest

from mpcore_port.status import status_of
from mpcore_port.targets import load_target

from .ports import FILLED, beside, ported

STEPS = """
for n in range(3):
    x = torch.arange(12.0).view(4, 3) / (n + 1)
    opt.zero_grad()
    loss = net(x).pow(2).mean()
    loss.backward()
    opt.step()
    made.append(loss.item())
made += [p.detach() for p in net.parameters()]
"""
MODULE = (
    FILLED
    + """
import torch.optim
from inspect import isclass
def taken_of(m):
    return {x: getattr(m, x) for x in dir(m) if isclass(getattr(m, x))}
net = filled(nn.Linear(3, 2))
weights = [p for p in net.parameters() if p.requires_grad]
"""
)


@pytest.mark.parametrize(
    "way",
    [
        'opt = taken_of(torch.optim)["Adam"](weights, lr=1e-2)',
        'optims = torch.optim\nopt = taken_of(optims)["Adam"](weights, lr=1e-2)',
        'found = {k: v for k, v in vars(torch.optim).items()}\nopt = found["SGD"](weights, lr=0.1)',
        'opt = torch.optim.__dict__.get("RMSprop")(weights, lr=1e-2)',
    ],
)
def test_a_module_of_optimizers_as_a_value(way, tmp_path):
    """It was refused."""
    found = beside(MODULE + way + STEPS, tmp_path)
    said = [edit for edit in found.edits if "taken out of the module" in edit.reason]
    assert {edit.kind for edit in said} == {"unproven"}


@pytest.mark.parametrize(
    "way",
    [
        'opt = torch.optim.__dict__["SGD"](weights, lr=0.1)',
        'name = "AdamW"\nopt = vars(torch.optim)[name](weights, lr=0.1)',
    ],
)
def test_a_module_of_optimizers_by_its_dictionary(way, tmp_path):
    """As getattr is told."""
    found = beside(MODULE + way + STEPS, tmp_path)
    assert not [edit for edit in found.edits if "taken out of the module" in edit.reason]


def test_a_module_of_schedules_as_a_value(tmp_path):
    """The same module, one further in."""
    way = """
from torch.optim import lr_scheduler
opt = torch.optim.SGD(weights, lr=0.1)
kinds = taken_of(lr_scheduler)
schedule = kinds["StepLR"](opt, 1, 0.5)
"""
    beside(MODULE + way + STEPS.replace("opt.step()", "opt.step()\n    schedule.step()"), tmp_path)


def test_other_modules_of_torch_stay_refused():
    """Nothing stands for them as modules."""
    found = ported("import torch\nfrom torch import nn\nfor x in dir(nn):\n    print(x)\n")
    assert [edit.old for edit in found.edits if edit.kind == "refused"] == ["nn"]


HIDDEN = """
import torch
import bitsandbytes as bnb
class Own:
    def __init__(self, net, bnb: bool = False, *others):
        self.net, self.bnb = net, bnb
        self.others = [bnb for one in others]
def counted(text):
    for bnb in text:
        print(bnb)
    return lambda bnb: bnb + 1
def late():
    bnb = 3
    def inner():
        return bnb
    return inner()
Own(1)
"""


@pytest.mark.parametrize("target", ["mindspore", "torch_npu"])
def test_a_parameter_that_hides_a_refused_import_is_no_stop(target):
    """Its reads were listed as lines that raise."""
    found = ported(HIDDEN, load_target(target))
    assert [edit.old for edit in found.edits if edit.kind == "refused"]
    assert status_of(found.source, found.edits).text == "runs"


@pytest.mark.parametrize("target", ["mindspore", "torch_npu"])
def test_reads_of_the_import_itself_stay_stops(target):
    """A default, a decorator, what is global, and a function inside that imports again."""
    script = HIDDEN + (
        "def some(bnb=bnb.Adam):\n    return bnb\n"
        "def more():\n    global bnb\n    bnb.step()\n    bnb = None\n"
        "class A:\n    bnb = 1\n    def f(self):\n        return bnb.Adam\n"
        "def last():\n    print([bnb for bnb in 'a'], bnb.Adam)\n"
        "def again(x):\n    import bitsandbytes as bnb\n    return bnb.Adam(x)\n"
    )
    found = ported(script, load_target(target))
    lines = script.splitlines()
    stops = [lines[line - 1].strip() for line in status_of(found.source, found.edits).stops]
    assert stops == [
        "def some(bnb=bnb.Adam):",
        "bnb.step()",
        "return bnb.Adam",
        "print([bnb for bnb in 'a'], bnb.Adam)",
        "return bnb.Adam(x)",
    ]
