"""Networks that another file holds, and tensors that are asked whether they want a gradient."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from mindspore import nn

import mpcore_port_runtime as port

from .ports import beside, loaded, ported

ZOO = """import torch
from torch import nn
net = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 1))
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
class Zoo:
    pass
zoo = Zoo()
zoo.small = net
"""
SCRIPT = """import torch
import zoo_of_mine
from zoo_of_mine import net, zoo
small = zoo_of_mine.net
state = small.state_dict()
small.load_state_dict(state)
small.eval()
small.to("cuda:0" if torch.cuda.is_available() else "cpu")
layers = list(small.children())[:1]
optimizer = torch.optim.SGD(zoo_of_mine.net.parameters(), lr=0.01)
made = []
for batch in [torch.ones(2, 2), torch.ones(2, 2) * 2]:
    net.zero_grad()
    loss = net(batch).pow(2).sum()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
made += [p.detach() for p in zoo.small.parameters()]
made += [torch.ones(2) * len(layers), torch.ones(1) * len([m for m in net.modules()])]
"""


def _run(zoo: str, run) -> dict[str, object]:
    module = ModuleType("zoo_of_mine")
    exec(zoo, module.__dict__)
    sys.modules["zoo_of_mine"] = module
    try:
        return run()
    finally:
        del sys.modules["zoo_of_mine"]


def test_methods_of_an_imported_network_are_a_networks(tmp_path):
    found = ported(SCRIPT)
    zoo = ported(ZOO)
    theirs: dict[str, object] = {"__name__": "script"}
    _run(ZOO, lambda: exec(SCRIPT, theirs))
    ours = _run(zoo.text, lambda: loaded(found.text, tmp_path))
    for one, other in zip(ours["made"], theirs["made"], strict=True):
        assert abs(one.asnumpy() - other.numpy()).max() < 1e-6
    lines = {edit.line for edit in found.edits if edit.kind == "unproven"}
    assert {5, 6, 7, 8, 9, 10, 18} <= lines


KEPT = {
    "a function of a module": "import engine\nengine.train()\nengine.eval()\n",
    "a module of a package": "import own.engine\nown.engine.parameters()\n",
    "of the standard library": "from os import path\npath.modules()\n",
    "asked with more": "from own import trainer\ntrainer.train(3, 4)\ntrainer.to_file('x')\n",
}


@pytest.mark.parametrize("lines", KEPT.values(), ids=KEPT)
def test_functions_of_a_module_stay(lines):
    text = ported("import torch\n" + lines).text
    assert text.endswith("\n".join(lines.split("\n")[1:]))


WANTED = """import torch
made = []
def loss(x, target):
    assert not target.requires_grad
    assert (target.requires_grad is False)
    return (x - target).pow(2).sum() * (1.0 if target.requires_grad else 2.0)
net = torch.nn.Linear(2, 1)
for p in net.parameters():
    p.data.fill_(0.5)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
batches = [(torch.ones(2, 2), torch.ones(2, 1)), (torch.ones(2, 2) * 2, torch.ones(2, 1))]
for x, y in batches:
    value = loss(net(x), y)
    opt.zero_grad()
    value.backward()
    opt.step()
    made.append(value.detach())
"""


def test_a_tensor_that_wants_no_gradient_says_so(tmp_path):
    found = beside(WANTED, tmp_path)
    lines = {edit.line for edit in found.edits if edit.kind == "unproven"}
    assert {4, 5, 6} <= lines


def test_a_parameter_answers_itself():
    script = (
        "import torch\nnet = torch.nn.Linear(2, 1)\n"
        "n = sum(q.numel() for q in net.parameters() if q.requires_grad)\n"
        "net.weight.requires_grad = False\nprint(net.weight.requires_grad)\n"
    )
    text = ported(script).text
    assert "wants_grad" not in text


RUNNERS = """import torch
from parts import Trainer, build
trainer = Trainer(1)
trainer.train()
t = Trainer(2)
t.train()
t.eval()
build(3).train()
Trainer(4).train()
"""


def test_an_object_that_runs_training_keeps_its_own_method(tmp_path):
    found = ported(RUNNERS)
    for line in ("port.train(trainer)", "port.train(t)", "port.evaluate(t)"):
        assert line in found.text
    assert "port.train(Trainer(4))" in found.text
    assert {4, 6, 7} <= {edit.line for edit in found.edits if edit.kind == "unproven"}


def test_what_is_a_network_after_all_changes_its_mode():
    class Runner:
        def train(self):
            return "trained"

        def eval(self):
            return "evaluated"

    assert port.train(Runner()) == "trained"
    assert port.evaluate(Runner()) == "evaluated"
    net = nn.Dense(1, 1)
    assert port.train(net).training
    assert not port.evaluate(net).training
