"""Steps verified without help: numbers that stand-ins are compared with, what setters hand over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mpcore_port.verify.extract import extract
from mpcore_port.verify.left_out import givers_of_losses
from mpcore_port.verify.module import module_of
from mpcore_port.verify.stand_in import StandIn

from .ports import verified

if TYPE_CHECKING:
    from pathlib import Path


COUNTED = """import torch
from theirs import settings
hp = settings.load("settings")
net = torch.nn.Linear(16, 10).cuda()
opti = torch.optim.SGD(net.parameters(), lr=0.1)
count = 0
for x, y in settings.batches():
    loss = torch.nn.functional.cross_entropy(net(x.cuda()), y.cuda())
    loss.backward()
    count += 1
    if count != hp.accum_grad:
        continue
    opti.step()
    opti.zero_grad()
    count = 0
"""


def test_a_setting_that_is_not_there_equals_the_number_that_its_name_says(tmp_path: Path) -> None:
    done = verified(COUNTED, tmp_path, ("float32",), "torch_npu")
    assert done.passed, done.lines()


def test_only_names_that_say_numbers_equal_some() -> None:
    assert StandIn("hp.accum_grad") == 2
    assert 1 != StandIn("hp.accum_grad")  # noqa: SIM300
    assert not StandIn("hp.kind") == 1  # noqa: SIM201


SETTERS = """import torch
class Trainer:
    def __init__(self, builder):
        self.model = builder(10)
        self.optimizer = None
        self.loader = {}
        self.say = print
    def set_loaders(self, loader_dict):
        self.loader_dict = loader_dict
        self.say("there are loaders")
    def set_optimizer(self, optimizer, scheduler=None):
        self.optimizer = optimizer
        self.scheduler = scheduler
    def rename(self, say):
        self.say = say
    def train(self):
        self.model.train()
        for x, y in self.loader_dict["train"]:
            loss = torch.nn.functional.cross_entropy(self.model(x.cuda()), y.cuda())
            for group in self.optimizer.param_groups:
                group["lr"] = 0.1
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.scheduler is not None:
                self.scheduler.step()
"""


def test_what_setters_hand_over_is_handed_over(tmp_path: Path) -> None:
    step = extract(SETTERS, tmp_path)
    assert "_mpcore_owner.set_loaders(" in step.call
    assert "optimizer=torch.optim.SGD(_mpcore_owner.model.parameters()" in step.call
    assert "rename" not in step.call
    done = verified(SETTERS, tmp_path, ("float32",), "torch_npu")
    assert done.passed, done.lines()


EVALUATED = """import torch
from theirs import evaluate, batches
net = torch.nn.Linear(16, 10).cuda()
opti = torch.optim.SGD(net.parameters(), lr=0.1)
best = 0.0
def train():
    best = 0.0
    for x, y in batches():
        loss = torch.nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        opti.zero_grad()
        loss.backward()
        opti.step()
        logs = {"loss": loss.item()}
        logs.update(evaluate(net))
        if logs["accuracy"] > best and logs["loss"] < 100.0:
            best = logs["accuracy"]
            print("best", best)
train()
"""


def test_what_is_read_of_results_that_are_not_there_is_put_with_others(tmp_path: Path) -> None:
    done = verified(EVALUATED, tmp_path, ("float32",), "torch_npu")
    assert done.passed, done.lines()
    assert not (done.step or {})["without_forward"]


def test_only_what_a_dictionary_lacks_comes_from_what_is_not_there() -> None:
    logs: dict[str, object] = {"loss": 1.0}
    found = StandIn("evaluate")
    logs.update(found)
    assert logs["loss"] == 1.0
    assert isinstance(logs["accuracy"], StandIn)
    assert list(found.keys()) == []


TYPES = """import torch
def endless(loader):
    while True:
        for data in loader:
            yield data
class Trainer:
    def __init__(self, model, loader, optimizer):
        self.model, self.loader, self.optimizer = model, loader, optimizer
    def given(self, batches):
        data = next(batches)
        if isinstance(data, tuple):
            named = dict(zip(("image", "kind"), data))
        elif isinstance(data, dict):
            named = data
        named.pop("texts", None)
        return named
    def train(self):
        batches = endless(self.loader)
        for _ in range(1000):
            named = self.given(batches)
            loss, (one, other) = self.model(**named, parts=True)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
"""


def test_batches_are_of_a_type_that_a_script_asks_for(tmp_path: Path) -> None:
    done = verified(TYPES, tmp_path, ("float32",), "torch_npu")
    assert done.passed, done.lines()
    assert not (done.step or {})["without_forward"]


LOADERS = """import torch
def evaluate(net, loss_fn, loader):
    with torch.no_grad():
        return sum(loss_fn(pred=net(x), ref=y).item() for x, y in loader), {}
def train(model, loss_fn, train_loader, valid_loaders, optimizer, epochs):
    for name, loader in valid_loaders.items():
        valid_loss, more = evaluate(model, loss_fn, loader)
    best = valid_loss
    for epoch in range(epochs):
        for x, y in train_loader:
            step(model, loss_fn, x.cuda(), y.cuda(), optimizer)
def step(model, loss_fn, x, y, optimizer):
    optimizer.zero_grad()
    out = model(x)
    loss = loss_fn(pred=out, ref=y)
    loss.backward()
    optimizer.step()
"""


def test_loaders_by_name_and_losses_by_keywords(tmp_path: Path) -> None:
    step = extract(LOADERS, tmp_path)
    assert 'valid_loaders={"loader": _mpcore_loader()}' in step.call
    assert 'loss_fn=_mpcore_missing("loss_fn")' in step.call
    done = verified(LOADERS, tmp_path, ("float32",), "torch_npu")
    assert done.passed, done.lines()
    assert not (done.step or {})["without_forward"]


WEIGHTED = """import torch
from theirs import loader
net = torch.nn.Linear(16, 10).cuda()
opti = torch.optim.SGD(net.parameters(), lr=0.1)
def compared(out, kind):
    return (out - kind).abs().mean()
def boxes(out, kind):
    return (out.permute(0, 2, 3, 1) - kind).abs().mean()
for x, y, z in loader:
    out = net(x.cuda())
    one_loss = compared(out, y.cuda())
    box_loss = 0.1 * boxes(out, z.cuda())
    loss = one_loss + box_loss
    opti.zero_grad()
    loss.backward()
    opti.step()
"""


def test_losses_that_have_a_weight_are_left_out_as_others(tmp_path: Path) -> None:
    module = module_of(WEIGHTED)
    assert givers_of_losses(module, (9, 16)) == [11, 12]
    done = verified(WEIGHTED, tmp_path, ("float32",), "torch_npu")
    assert done.passed, done.lines()
    assert not (done.step or {})["without_forward"]


SEVERAL = """import torch
class Trainer:
    def __init__(self, model, optimizer, loss_func=torch.nn.MSELoss()):
        self.model, self.loss_func, self.optimizer = model, loss_func, optimizer
    def compared(self, x, y):
        loss, *parts = self.loss_func(self.model(x), y)
        return loss, (parts if parts != [] else None)
    def train(self, loader):
        for x, y in loader:
            loss, parts = self.compared(x.cuda(), y.cuda())
            if parts is not None:
                print(sorted(parts.keys()))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
"""


def test_a_loss_that_is_taken_apart_gives_several(tmp_path: Path) -> None:
    done = verified(SEVERAL, tmp_path, ("float32",), "torch_npu")
    assert done.passed, done.lines()
    assert not (done.step or {})["without_forward"]


def test_the_rest_of_what_is_taken_apart_is_empty() -> None:
    net = StandIn("net")
    x = torch.ones(8, 16)
    loss, *rest, last = net(x)
    assert loss.dim() == 0
    assert rest == []
    assert last.shape == (8, 10)
    loss, *rest = net(x)
    assert (loss.dim(), rest) == (0, [])
