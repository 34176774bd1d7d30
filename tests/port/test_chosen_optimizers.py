"""Optimizers that are taken out of a module by name, and names that hide imports."""

from __future__ import annotations

import pytest

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
