"""Steps verified without help: what trainers resume from, set themselves, count, and look up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from mpcore_port.verify.extract import extract
from mpcore_port.verify.kit import TorchKit
from mpcore_port.verify.roles import SETTINGS, number_of
from mpcore_port.verify.stand_in import StandIn
from mpcore_port.verify.synthetic import fill, give

from .ports import verified

if TYPE_CHECKING:
    from pathlib import Path

RESUMED = """import torch
import networks
from theirs import resume, make_loader
class Solver:
    def __init__(self, arg_dict, paths):
        self.loader = make_loader(arg_dict["data"])
        if hasattr(networks, arg_dict["kind"]):
            self.net = getattr(networks, arg_dict["kind"])().cuda()
        else:
            raise AttributeError
        self.opti = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.sche = torch.optim.lr_scheduler.ExponentialLR(self.opti, 0.9)
        self.scaler = torch.cuda.amp.GradScaler()
        self.first = torch.load(paths["last"])["epoch"]
        self.start_epoch = resume(paths["last"])
    def train(self, epochs=1):
        for epoch in range(self.start_epoch, self.first + epochs):
            self.one()
            self.sche.step()
    def one(self):
        for x, y in enumerate(self.loader):
            with torch.autocast("cuda"):
                loss = torch.nn.functional.mse_loss(self.net(x.cuda()), y.cuda())
            self.opti.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opti)
            self.scaler.update()
"""
RAISES, RESUMES = 10, 15


def test_a_scheduler_that_steps_by_epoch_makes_no_training_loop_of_its_epochs(
    tmp_path: Path,
) -> None:
    step = extract(RESUMED, tmp_path)
    assert step.function == "Solver.one"


def test_what_a_check_beside_would_have_given_an_object_it_has(tmp_path: Path) -> None:
    step = extract(RESUMED, tmp_path, {RAISES})
    line = step.body.splitlines()[RAISES - 1]
    assert line.strip() == "_mpcore_give(self, net=_mpcore_missing('self.net').to(\"cuda\"))"


def test_what_was_left_out_is_a_number_by_the_name_that_it_gets(tmp_path: Path) -> None:
    step = extract(RESUMED, tmp_path, {RESUMES})
    assert "_mpcore_missing('resume.start_epoch')()" in step.body


def test_calls_and_checkpoints_that_are_not_there_give_first_epochs() -> None:
    start_epoch = StandIn("theirs.resume", imported=True)("last.pt")
    other = StandIn("theirs.resume", imported=True)("last.pt")
    assert (start_epoch.__index__(), other.__index__()) == (0, 1)
    assert number_of("torch.load.epoch") == number_of("torch.load.global_step") == 0
    assert number_of("args.epoch") == 1


def test_a_network_that_an_object_is_given_is_a_module() -> None:
    class Owner:
        pass

    give(owner := Owner(), net=StandIn("net"), path=StandIn("path"), net_args=StandIn("net_args"))
    fill(owner, model=lambda: StandIn("model"))
    assert isinstance(owner.net, torch.nn.Module)  # type: ignore[attr-defined]
    assert isinstance(owner.model, TorchKit.Module)  # type: ignore[attr-defined]
    assert isinstance(owner.path, StandIn)  # type: ignore[attr-defined]
    assert isinstance(owner.net_args, StandIn)  # type: ignore[attr-defined]


def test_dictionaries_of_arguments_are_settings() -> None:
    assert SETTINGS.fullmatch("arg_dict")
    assert SETTINGS.fullmatch("opt_dict")
    assert not SETTINGS.fullmatch("state_dict")
    assert not SETTINGS.fullmatch("param_dict")


COUNTED = """import torch
class Trainer:
    def __init__(self, model, optimizer, loader, others=None):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.others = others
        self.scaler, self.step, self.done = torch.cuda.amp.GradScaler(), 0, False
    def run(self, max_steps=1):
        while not self.done:
            self.one_epoch(max_steps)
    def one_epoch(self, max_steps):
        more = None if self.others is None else iter(self.others)
        for batch in self.loader:
            if more is not None:
                batch["more"] = next(more)
            with torch.autocast("cuda"):
                out = self.model(batch["inp"].cuda())
                loss = torch.nn.functional.cross_entropy(out, batch["target"].cuda())
            if batch.get("more") is not None:
                loss = loss + self.model(batch["more"]["inp"].cuda()).mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.step += 1
            if self.step >= max_steps:
                self.done = True
                break
"""


def test_keys_that_a_loop_sets_itself_are_of_no_loader(tmp_path: Path) -> None:
    step = extract(COUNTED, tmp_path)
    assert step.layouts[0].names == ("inp", "target")
    assert "max_steps=64" in step.call


@pytest.mark.slow
@pytest.mark.nightly
def test_a_trainer_that_ends_after_few_steps_by_default_is_verified(tmp_path: Path) -> None:
    done = verified(COUNTED, tmp_path, ("float32", "mixed"), "torch_npu")
    assert done.passed, done.lines()


EITHER = """import torch
def train(model, loader, optimizer, loss_fun, scaler):
    for inputs, labels, meta in loader:
        for key, value in meta.items():
            meta[key] = value.cuda()
        if isinstance(labels, (dict,)):
            labels = {key: value.cuda() for key, value in labels.items()}
        else:
            labels = labels.cuda()
        with torch.autocast("cuda"):
            loss = loss_fun(model(inputs.cuda()), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
"""


def test_what_may_be_a_dictionary_is_a_tensor_and_what_is_one_is_one(tmp_path: Path) -> None:
    (layout,) = extract(EITHER, tmp_path).layouts
    assert layout.form == "({}, {}, {{'y': {}}},)"
