"""Optimizers that are taken out of a module by name, and names that hide imports."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest

import mpcore_port_runtime as port
from mpcore_port.status import status_of
from mpcore_port.targets import load_target

from .ports import FILLED, beside, compare, loaded, ported, ported_folder

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


OF_RANGER = [
    (
        {"lr": 0.05, "weight_decay": 0.1},
        [
            -0.9722996,
            -0.8920341,
            -0.7244717,
            -0.6712902,
            -0.4911596,
            0.4119988,
            -0.9711105,
            -0.6084046,
            -0.1587355,
            0.2585651,
        ],
    ),
    (
        {"lr": 0.05, "gc_conv_only": True, "k": 4, "alpha": 0.8},
        [
            -1.0113773,
            -0.930983,
            -0.7045385,
            -0.668286,
            -0.5142019,
            0.3822677,
            -0.9615666,
            -0.6006196,
            -0.094178,
            0.2213092,
        ],
    ),
    (
        {"lr": 0.02, "use_gc": False, "N_sma_threshhold": 4, "betas": (0.9, 0.99)},
        [
            -1.0000472,
            -0.9183748,
            -0.7963733,
            -0.7191789,
            -0.5008428,
            0.4680446,
            -0.999555,
            -0.6132319,
            -0.1871178,
            0.2295741,
        ],
    ),
]
"""Settings, and of three weights the first numbers after 13 steps of the package (20.4.11)."""


def _even(low, high, *shape):
    count = int(np.prod(shape))
    return np.linspace(low, high, count, dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(("settings", "wanted"), OF_RANGER)
def test_steps_of_ranger(settings, wanted):
    """Numbers of lessw2020's own, run on torch 2.13.0: centred, rectified, and looked ahead."""
    starts = [_even(-1, 1, 2, 3, 2, 2), _even(-0.5, 0.5, 2), _even(-1, 1, 2, 3)]
    held = [ms.Parameter(ms.Tensor(one), name=f"p{n}") for n, one in enumerate(starts)]
    opt = port.ranger.Ranger(held, **settings)
    for n in range(13):
        places = [np.arange(p.size, dtype=np.float32).reshape(p.shape) for p in held]
        grads = [np.sin(at * np.float32(1.7) + n) for at in places]
        opt([ms.Tensor(g + p.asnumpy() * 0.5) for g, p in zip(grads, held, strict=True)])
    found = [x for p in held for x in p.asnumpy().reshape(-1)[:4]]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_ranger_refuses_groups_with_betas_of_their_own():
    """The package takes the corrections of one group for the others."""
    held = [ms.Parameter(ms.Tensor(_even(-1, 1, 2)), name=name) for name in "ab"]
    groups = [{"params": [held[0]], "betas": (0.9, 0.99)}, {"params": [held[1]]}]
    opt = port.ranger.Ranger(groups)
    with pytest.raises(NotImplementedError, match="betas"):
        opt([ms.Tensor(_even(-1, 1, 2))] * 2)
    with pytest.raises(ValueError, match="alpha"):
        port.ranger.Ranger(held, alpha=2.0)


RANGER = """import torch
from torch import nn
from ranger import Ranger
net = nn.Linear(3, 2)
opt = Ranger(net.parameters(), lr=0.1, weight_decay=0.01)
for n in range(7):
    opt.zero_grad()
    loss = net(torch.ones(2, 3)).sum()
    loss.backward()
    opt.step()
"""


def test_the_package_of_ranger_is_ported(tmp_path):
    """Its import was refused."""
    found = ported(RANGER)
    assert not [edit for edit in found.edits if edit.kind in ("refused", "unproven")]
    assert "20.4.11" in next(edit.effect for edit in found.edits if "Ranger(" in edit.old)
    loaded(found.text, tmp_path)
    lines = ported("from ranger import RangerQH\nRangerQH([])\n").edits
    assert [edit.kind for edit in lines if edit.line == 1] == ["refused"]


@pytest.mark.parametrize("place", ["", "own"])
def test_a_file_of_the_scripts_own_named_like_a_package(place, tmp_path):
    """Its class was taken for the package's."""
    home = tmp_path / place
    home.mkdir(exist_ok=True)
    (home / "ranger.py").write_text(
        "import torch\nclass Ranger(torch.optim.SGD):\n    pass\n", encoding="utf-8"
    )
    (home / "train.py").write_text(RANGER, encoding="utf-8")
    text = ported_folder(tmp_path)["train.py"]
    assert "= Ranger(net" in text
    assert "port.ranger" not in text
