"""Optimizers that are taken out of a module by name, and names that hide imports."""

from __future__ import annotations

import pytest

from mpcore_port.status import status_of
from mpcore_port.targets import load_target

from .ports import FILLED, beside, compare, loaded, ported

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


FUSED = """
import apex
import apex.optimizers as ao
from apex import optimizers as fused
net = filled(nn.Linear(3, 2))
other = filled(nn.Linear(3, 2))
name = "FusedAdam"
opt = getattr(apex.optimizers, name)(net.parameters(), lr=1e-2, weight_decay=0.1)
rest = getattr(ao, "Fused" + "SGD")(other.parameters(), lr=0.1, momentum=0.9)
written = fused.FusedAdam(other.parameters(), lr=0.1)
for n in range(3):
    x = torch.arange(12.0).view(4, 3) / (n + 1)
    opt.zero_grad()
    net(x).pow(2).mean().backward()
    opt.step()
    rest.zero_grad()
    other(x).pow(2).mean().backward()
    rest.step()
made += [p.detach() for p in net.parameters()]
made += [p.detach() for p in other.parameters()]
"""


def _in_torch(script: str) -> str:
    """Return a script with what apex computes, by torch's own optimizers."""
    lines = [line for line in script.splitlines() if "import apex" not in line]
    text = "\n".join(line for line in lines if "from apex" not in line)
    text = text.replace("getattr(apex.optimizers, name)", "torch.optim.AdamW")
    return text.replace('getattr(ao, "Fused" + "SGD")', "torch.optim.SGD").replace(
        "fused.FusedAdam", "torch.optim.AdamW"
    )


def test_a_fused_optimizer_by_name_in_mindspore(tmp_path):
    """The module was refused, where the written out form is ported."""
    found = ported(FILLED + FUSED)
    said = [edit for edit in found.edits if "is there" in edit.effect or "are there" in edit.effect]
    assert [edit.kind for edit in said] == ["changed", "changed"]
    compare(_in_torch(FILLED + FUSED), found.text, tmp_path)


def test_a_fused_optimizer_by_name_on_an_npu(tmp_path):
    """The import was refused; what the class of the port gives is what torch has."""
    found = ported(FILLED + FUSED, load_target("torch_npu"))
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    text = found.text.replace("import torch_npu\n", "")
    made = {}
    for name, one in (("port", text), ("script", _in_torch(FILLED + FUSED))):
        space = {"__name__": name}
        exec(one, space)
        made[name] = [value.tolist() for value in space["made"]]
    assert made["port"] == made["script"]


@pytest.mark.parametrize("target", ["mindspore", "torch_npu"])
def test_fused_optimizers_that_are_not_ported_raise(target, tmp_path):
    """By a name in sight they are refused; by another one they say so when the script runs."""
    script = "import apex.optimizers\ndef make(p):\n    return getattr(apex.optimizers, {})(p)\n"
    found = ported(script.format('"FusedNovoGrad"'), load_target(target))
    assert [edit.line for edit in found.edits if edit.kind == "refused"] == [3]
    found = ported(script.format('"FusedNovo" + "Grad"'), load_target(target))
    with pytest.raises(NotImplementedError, match="FusedNovoGrad"):
        loaded(found.text.replace("import torch_npu\n", ""), tmp_path)["make"]([])


@pytest.mark.parametrize("target", ["mindspore", "torch_npu"])
def test_the_module_of_apex_as_a_value_is_named(target):
    """What a function takes out of it is not seen."""
    found = ported("from apex import optimizers\nprint(optimizers)\n", load_target(target))
    assert [edit.line for edit in found.edits if edit.kind == "unproven"] == [2]
    assert not [edit for edit in found.edits if edit.kind == "refused"]
