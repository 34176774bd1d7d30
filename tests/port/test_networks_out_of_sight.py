"""Losses of networks that no rule has seen are refused by their line, and raise nothing else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from .ports import FILLED, NET, beside, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

RUNNER = (
    FILLED
    + """class Entry:
    def __init__(self, model, trainable):
        self.model, self.trainable = model, trainable
class Runner:
    def __init__(self):
        up, down = filled(nn.Linear(4, 4)), filled(nn.Linear(4, 3))
        vars(self).update(upstream=Entry(up, True), downstream=Entry(down, True))
        self.other = filled(nn.Linear(2, 2))
    def train(self, specaug=None):
        nets = [self.upstream, self.downstream]
        params = [p for one in nets for p in one.model.parameters()]
        params += list(self.other.parameters())
        optimizer = torch.optim.SGD(params, lr=0.01, weight_decay=0.1)
        for i, s in enumerate((1.0, 2.0, 3.0, 2.0)):
            x = torch.linspace(-1.0, s, 24).view(6, 4)
            features = self.upstream.model(x)
            if specaug:
                features, _ = specaug(features)
            loss = self.downstream.model(features).square().mean()
            loss = loss / 2
            loss.backward()
            made.append(loss.detach())
            if i % 2 == 0:
                continue
            optimizer.step()
            optimizer.zero_grad()
runner = Runner()
runner.train()
for one in (runner.upstream.model, runner.downstream.model, runner.other):
    made += [p.detach() for p in one.parameters()]
"""
)


def test_what_an_object_out_of_sight_holds_is_a_network_by_its_name(tmp_path: Path) -> None:
    assert "_mpcore_refused" not in beside(RUNNER, tmp_path).text


def test_what_may_be_none_is_no_network_that_a_loss_comes_from() -> None:
    found = ported(RUNNER.replace(".model(", ".part(").replace(".model.", ".part."))
    told = [one for one in found.edits if "`specaug`, which may be None" in one.reason]
    assert {(one.kind, one.rule) for one in told} == {
        ("exact", "training loop"),  # keeps torch's form
        ("unproven", "training step"),
    }
    assert "port.record()" in max(told, key=lambda one: one.kind).reason


def test_with_a_network_in_sight_it_is_one(tmp_path: Path) -> None:
    known = RUNNER.replace("vars(self).update(upstream=Entry(up, True), downstream=", "(").replace(
        "(Entry(down, True))", "self.upstream, self.downstream = Entry(up, 1), Entry(down, 1)"
    )
    assert known != RUNNER
    beside(known, tmp_path)


STATE = (
    """import torch
from torch import nn
"""
    + NET
    + """class State:
    def __init__(self):
        self.model = self.backbone = Net(7)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
"""
)

HELD = """import torch
from contextlib import nullcontext
from torch import nn
from states import State
def stepped(state: State, loss):
    loss.backward()
    torch.nn.utils.clip_grad_norm_(state.model.parameters(), max_norm=0.5)
    state.optimizer.step()
    state.optimizer.zero_grad()
def first(state: State, loss_fn, x):
    logits = state.model(x)
    loss = loss_fn(logits, torch.zeros_like(logits)).mean()
    stepped(state, loss)
    return loss.detach()
def second(state, x):
    features = state.backbone(x)
    loss = features.pow(2).mean()
    loss.backward()
    state.optimizer.step()
    state.optimizer.zero_grad()
    return loss.detach()
def third(state, loss_fn, x, training):
    with nullcontext() if training else torch.no_grad():
        logits = state.model(x)
        if isinstance(loss_fn, nn.L1Loss):
            loss = loss_fn(logits, torch.ones_like(logits)).mean()
        else:
            raise ValueError("another loss")
    if training:
        stepped(state, loss)
    return loss.detach()
state = State()
made = []
for number in range(3):
    x = torch.ones(4, 3) * (number + 1)
    made += [first(state, nn.MSELoss(), x).item(), second(state, x).item()]
    made += [third(state, nn.L1Loss(), x, number < 2).item()]
made += [state.model.weight.detach()]
"""


def test_networks_that_objects_of_another_file_hold_are_in_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, folder in ((STATE, "torchs"), (ported(STATE).text, "ports")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "states.py").write_text(text, encoding="utf-8")
    theirs: dict[str, Any] = {"__name__": "script"}
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "torchs"))
        exec(HELD, theirs)
    monkeypatch.delitem(sys.modules, "states")
    monkeypatch.syspath_prepend(str(tmp_path / "ports"))
    own = loaded(ported(HELD).text, tmp_path)["made"]
    monkeypatch.delitem(sys.modules, "states")
    np.testing.assert_allclose(own[:-1], theirs["made"][:-1], rtol=1e-5)
    np.testing.assert_allclose(own[-1].asnumpy(), theirs["made"][-1].numpy(), rtol=1e-5)


OBJECTS = (
    """import torch
import torch.nn.functional as F
from torch import nn
"""
    + NET
    + """class Held:
    pass
def make():
    one = Held()
    vars(one).update(net=Net(7), featurizer=Net(5), forward_train=Net(3))
    return one
def by_name(trainer, x, y, optimizer):
    out = trainer.net(x)
    loss = F.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
def of_an_object(algo, x, y, optimizer):
    out = algo.featurizer(x)
    loss = F.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
def of_a_dictionary(models, x, y, optimizer):
    out = models["student"](x)
    with torch.no_grad():
        t = models["teacher"](x)
    loss = F.mse_loss(out, t)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
class Learner:
    def __init__(self, learn, opt):
        self.learn, self.opt = learn, opt
    def run(self, x, y):
        pred = self.learn.forward_train(x)
        loss = F.cross_entropy(pred, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()
one = make()
every = [*one.net.parameters(), *one.featurizer.parameters(), *one.forward_train.parameters()]
opt = torch.optim.SGD(every, lr=0.1)
learner = Learner(one, opt)
made = []
for n in range(3):
    x = torch.ones(4, 3) * (n + 1)
    y = torch.tensor([0, 1, 1, 1])
    two = {"student": one.net, "teacher": one.featurizer}
    made += [by_name(one, x, y, opt), of_an_object(one, x, y, opt)]
    made += [of_a_dictionary(two, x, y, opt), learner.run(x, y)]
"""
)


def test_what_unknown_objects_give_is_in_the_loss_where_no_network_is(tmp_path: Path) -> None:
    assert "pred = self.learn.forward_train(x)\n            loss" in beside(OBJECTS, tmp_path).text


ELSEWHERE = (
    """import torch
import torch.nn.functional as F
from torch import nn
from passes_elsewhere import compute
"""
    + NET
    + """class State:
    def __init__(self):
        self.part = Net()
class Learner:
    def __init__(self, state, optimizer):
        self.state, self.optimizer = state, optimizer
    def run(self, x, y):
        given = compute(self.state, x)
        loss = F.mse_loss(given, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()
state = State()
learner = Learner(state, torch.optim.SGD(state.part.parameters(), lr=0.1))
made = [learner.run(torch.ones(4, 3) * (n + 1), torch.ones(4, 2)) for n in range(3)]
"""
)


def test_what_a_function_of_another_file_gives_is_in_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def compute(state, x):\n    return state.part(x)\n"
    (tmp_path / "passes_elsewhere.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "given = compute(self.state, x)\n            loss" in beside(ELSEWHERE, tmp_path).text
