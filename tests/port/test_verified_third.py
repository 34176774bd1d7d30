"""Steps that stood still at what surrounds a training: settings, folders, words, empty data."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from mpcore_port.verify import left_out
from mpcore_port.verify import step as steps
from mpcore_port.verify.absent import nothing
from mpcore_port.verify.bases import _only_read
from mpcore_port.verify.extract import extract
from mpcore_port.verify.guess import _is_counted_to, _takes_others
from mpcore_port.verify.module import Module
from mpcore_port.verify.reported import is_only_reported
from mpcore_port.verify.standing import _modes
from mpcore_port.verify.synthetic import Missing

from .ports import verified

if TYPE_CHECKING:
    from pathlib import Path

TRAINER = """import argparse
import os
import odd
import torch
from torch import nn
from odd.data import samples
from odd.hub import Mixin, get_loss
class HParams:
    def __init__(self, **given):
        for key, value in given.items():
            self[key] = value
    def __setitem__(self, key, value):
        setattr(self, key, value)
class Net(nn.Module, Mixin, library="odd"):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 10)
    def forward(self, x):
        return self.inner(x)
class Empty(torch.utils.data.Dataset):
    def __len__(self):
        return 0
def given():
    return HParams(epochs=2)
parser = argparse.ArgumentParser()
parser.add_argument("--lr", default=None, type=float)
parser.add_argument("--config", default="")
args = parser.parse_args()
def fill_in(name):
    if getattr(args, name) is None:
        setattr(args, name, 0.1)
fill_in("lr")
class Trainer:
    def __init__(self, hps):
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        self.hps = hps
        self.data = Empty()
        self.sampler = torch.utils.data.RandomSampler(self.data)
        self.loader = torch.utils.data.DataLoader(self.data, batch_size=8, sampler=self.sampler)
        self.model = Net().cuda()
        self.model.inner.bias = nn.Parameter(odd.bias())
        if os.path.isdir("checkpoints/" + os.environ["PROJECT"]):
            last = odd.scan("checkpoints")
        if last is not None:
            print("goes on", hps.exp_dir)
        self.criterion = get_loss(hps.train.kind,
                                  weight=hps.train.weight).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr)
        self.scaler = torch.cuda.amp.GradScaler()
    def train(self):
        for epoch in range(self.hps.epochs):
            for x, y in self.loader:
                with torch.cuda.amp.autocast():
                    loss = self.criterion(self.model(x.cuda()), y.cuda())
                self.optimizer.zero_grad()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
if __name__ == "__main__":
    trainer = Trainer(given())
    trainer.train()
"""


@pytest.mark.day(8)
def test_what_surrounds_a_training_keeps_no_step_from_running(tmp_path: Path) -> None:
    found = verified(TRAINER, tmp_path, ("float32", "mixed"), target="torch_npu")
    said = "\n".join(found.lines())
    assert found.passed, said
    assert "without its forward pass" not in said
    assert "get_loss" in said


def test_a_trainer_of_the_scripts_own_is_no_network() -> None:
    module = Module(TRAINER)
    lines = TRAINER.splitlines()
    made = {lines[n - 1].strip() for n in left_out.makers_of_models(module)}
    assert made == {"self.model = Net().cuda()"}


def test_data_without_files_is_what_a_sampler_says_it_is() -> None:
    module = Module(TRAINER)
    at = 1 + TRAINER.splitlines().index(
        "        self.sampler = torch.utils.data.RandomSampler(self.data)"
    )
    words = "ValueError: num_samples should be a positive integer value, but got num_samples=0"
    assert left_out.empty_data(module, at, words) == [at - 1]
    assert left_out.empty_data(module, at, "ValueError: other") == []


STREAM = """import torch
class Loop:
    def __init__(self, model, data, losses):
        self.model, self.data, self.losses = model, data, losses
        self.opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    def run(self):
        while True:
            batch, cond = next(self.data)
            self.step(batch, cond)
    def step(self, batch, cond):
        self.opt.zero_grad()
        for i in range(0, batch.shape[0], 4):
            loss = self.losses(self.model, batch[i : i + 4], cond)
            loss.backward()
        self.opt.step()
"""


def test_batches_that_a_loop_fetches_are_not_there_without_a_forward_pass(tmp_path: Path) -> None:
    step = extract(STREAM, tmp_path, forward=False)
    calls = [one for one in ast.walk(ast.parse(step.body)) if isinstance(one, ast.Call)]
    (ours,) = (one for one in calls if ast.unparse(one.func) == "self.step")
    assert [ast.unparse(one) for one in ours.args] == ["_mpcore_missing('batch')"] * 2


EPOCH = """def train(first, k, loader, model, objective, optimizer):
    for n in range(first, first + k):
        batch = next(loader)
        out = model(batch)
        loss = objective(out, batch)
        loss.backward()
        optimizer.step()
"""


def test_a_loss_that_is_handed_a_whole_batch_is_a_stand_in() -> None:
    function = Module(EPOCH).functions["train"]
    assert _takes_others("objective", function)
    plain = Module(EPOCH.replace("(out, batch)", "(out, target)")).functions["train"]
    assert not _takes_others("objective", plain)


def test_numbers_that_a_loop_counts_to_are_as_many_as_batches() -> None:
    function = Module(EPOCH).functions["train"]
    assert [_is_counted_to(name, function) for name in ("first", "k", "loader")] == [
        False,
        True,
        False,
    ]


DIFFUSION = """import torch
from functools import partial
from odd.models import DiT
from odd.vae import AutoencoderKL
from odd.transport import create_transport
def main(args):
    model = DiT().cuda()
    vae = AutoencoderKL.from_pretrained("stabilityai").cuda()
    transport = create_transport(args.path_type)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.cuda.amp.GradScaler()
    for x, y in loader(args):
        with torch.no_grad():
            x = vae.encode(x.cuda()).latent_dist.sample().mul_(0.18215)
        with torch.cuda.amp.autocast():
            losses = partial(transport.training_losses, model, x, dict(y=y.cuda()))()
            loss = losses["loss"].mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
"""


@pytest.mark.day(8)
def test_what_is_handed_a_network_runs_it(tmp_path: Path) -> None:
    found = verified(DIFFUSION, tmp_path, ("float32", "mixed"), target="torch_npu")
    said = "\n".join(found.lines())
    assert found.passed, said
    assert "without its forward pass" not in said
    assert "training_losses" in said


CHUNKS = """import odd
import torch
from odd.utils import parts_of, moved
from nets import Wide
class Recipe(odd.Model):
    network = {"wide": Wide}
    loss = {**odd.losses, "mse": torch.nn.MSELoss}
    def __init__(self, params):
        super().__init__(params)
        self.scaler = torch.cuda.amp.GradScaler()
    def train_step(self, batch, state):
        self.optimizer.zero_grad()
        for part in parts_of(batch, 1):
            x, y = moved(part, self.device)
            with torch.cuda.amp.autocast():
                loss = self.loss(self.network(x), y)
            self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return {"loss": loss.item()}
"""


@pytest.mark.day(8)
def test_parts_of_a_batch_are_no_loop_that_trains(tmp_path: Path) -> None:
    found = verified(CHUNKS, tmp_path, ("float32",), target="torch_npu", losses=20)
    assert found.passed, "\n".join(found.lines())
    assert all(one.steps for one in found.comparisons)


REPORTED = """import torch
def train(model, loader, optimizer, meters, timer):
    for x, y in loader:
        ends = meters.read(x)
        with timer.of(ends) as spent:
            loss = model(x).sum()
        loss.backward()
        optimizer.step()
        print(ends, spent)
"""


def test_what_a_block_binds_is_followed_though_it_has_no_line() -> None:
    module = Module(REPORTED)
    (call,) = (
        one
        for one in ast.walk(module.tree)
        if isinstance(one, ast.Call) and ast.unparse(one.func) == "meters.read"
    )
    assert is_only_reported(module, call)


def test_a_defect_of_verification_loses_no_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        msg = "odd"
        raise KeyError(msg)

    monkeypatch.setattr(steps, "_runnable", fail)
    found = verified(REPORTED, tmp_path, ("float32",), target="torch_npu")
    assert "a defect, please report" in "\n".join(found.lines())
    assert not found.passed


PARALLEL = """import torch
from torch import nn
class Mine(nn.DataParallel):
    def scatter(self, inputs, kwargs, device_ids):
        devices = ["cuda:" + str(x) for x in device_ids]
        x, y = inputs[0]
        return [(x.to(d), y.to(d)) for d in devices], [kwargs] * len(devices)
    def gather(self, outputs, output_device):
        return outputs
class Loss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def forward(self, x, y):
        return nn.functional.mse_loss(self.net(x), y)
def train(loader):
    net = Mine(Loss(nn.Linear(16, 4).cuda()))
    plain = nn.DataParallel(nn.Linear(16, 4).cuda())
    optimizer = torch.optim.SGD([*net.parameters(), *plain.parameters()], lr=0.1)
    scaler = torch.cuda.amp.GradScaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.cuda.amp.autocast():
            loss = net((x, y)) + plain(x.cuda()).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.day(8)
@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_a_class_of_data_parallel_runs_on_one_device(tmp_path: Path, target: str) -> None:
    found = verified(PARALLEL, tmp_path, ("float32",), target=target, losses=6)
    said = "\n".join(found.lines())
    assert found.passed, said
    assert "stand-in" not in said


def test_what_is_made_of_itself_was_there_before() -> None:
    text = CHUNKS.replace(
        "        self.scaler =",
        "        self.network, self.optimizer = odd.wrap(self.network, self.optimizer)\n"
        "        self.scaler =",
    )
    module = Module(text)
    read = _only_read(module, module.classes["Recipe"], made=True)
    assert {"network", "loss", "optimizer", "device"} <= set(read)
    assert "scaler" not in read


def test_classes_of_several_bases_that_are_not_there() -> None:
    first, second = Missing("odd.First"), Missing("odd.Second")

    class Both(first, second, kind="odd"):  # type: ignore[misc, valid-type]
        pass

    class Heir(second, Both, kind="odd"):  # type: ignore[misc, valid-type]
        pass

    assert issubclass(Heir, Both)


def test_constants_of_colours_that_are_not_there_are_numbers() -> None:
    package = nothing("odd.constants")
    assert package.IMAGENET_DEFAULT_MEAN == (0.5, 0.5, 0.5)
    assert package.OPENAI_CLIP_STD == (0.5, 0.5, 0.5)


def test_modes_of_what_the_step_knows_stand_in_the_port() -> None:
    assert _modes("port.train(criterion)") == ["criterion.set_train()"]
    assert _modes("port.evaluate(self.net)") == ["self.net.set_train(False)"]
    assert _modes("port.train(x, y)") == []
