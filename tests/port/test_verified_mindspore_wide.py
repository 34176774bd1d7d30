"""Steps verified for MindSpore, too: what is absent beside torch is absent beside the port."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from mpcore_port.mindspore.replay import how_it_ended, run_modes
from mpcore_port.verify.judge import Comparison, against_own

from .ports import verified

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """import torch
import torch.nn.functional as F
from torch import nn
"""
NETWORK = """net = nn.Linear(16, 4).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
"""
LOADER = "loader = theirs.make_loader()\n"

SCHEDULED = f"""{HEAD}import theirs
from transformers import get_cosine_schedule_with_warmup
{NETWORK}{LOADER}schedule = get_cosine_schedule_with_warmup(optimizer, 2, 10)
for x, y in loader:
    loss = F.cross_entropy(net(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
"""

OPTIMIZED = f"""{HEAD}import theirs
from transformers import AdamW
net = nn.Linear(16, 4).cuda()
optimizer = AdamW(net.parameters(), lr=0.5)
{LOADER}for x, y in loader:
    loss = F.cross_entropy(net(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

DIVIDED = f"""{HEAD}import theirs
{NETWORK}{LOADER}cfg = theirs.settings()
scaler = torch.cuda.amp.GradScaler()
for i, (x, y) in enumerate(loader):
    with torch.cuda.amp.autocast():
        loss = F.cross_entropy(net(x.cuda()), y.cuda())
    loss /= cfg.parts
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

WRITTEN = f"""{HEAD}import theirs
from torch.utils.tensorboard import SummaryWriter
{NETWORK}{LOADER}writer = SummaryWriter("runs")
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(net(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    writer.add_scalar("loss", loss.item(), i)
    writer.add_image("first", theirs.drawn(x), i)
"""

HALVED = f"""{HEAD}import theirs
def train(loader, net, optimizer, kind):
    for x, y in loader:
        optimizer.zero_grad()
        if kind == "half":
            x = x.half()
        x, y = x.cuda(), y.cuda()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(theirs.pictures(), theirs.labels())
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    net = nn.Linear(16, 4).cuda()
    train(loader, net, torch.optim.SGD(net.parameters(), lr=0.5), "float")
"""


@pytest.mark.parametrize("script", [SCHEDULED, OPTIMIZED, DIVIDED, WRITTEN, HALVED])
def test_a_step_is_verified_beside_what_is_absent(script: str, tmp_path: Path) -> None:
    found = verified(script, tmp_path, ("float32",))
    assert found.passed, found.why_not


SAVED = f"""{HEAD}import theirs
{NETWORK}{LOADER}rate = theirs.rate()
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(net(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save({{"net": net.state_dict(), "rate": rate}}, "last.pt")
"""

SOFTENED = f"""{HEAD}import theirs
from timm.data import *
from timm.utils import *
from timm.loss import *
{NETWORK}{LOADER}criterion = SoftTargetCrossEntropy().cuda()
for x, y in loader:
    loss = criterion(net(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

SLOW = """import torch
import torch.nn.functional as F
net = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
for _ in range(30):
    x = torch.ones(8, 16)
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PORTED = """import mindspore as ms
from mindspore import nn, ops
import mpcore_port_runtime as port
net = nn.Dense(16, 4)
optimizer = port.SGD(net.trainable_params(), lr=0.5)
for _ in range(30):
    x = ops.ones((8, 16))
    port.zero_grad(optimizer)
    def forward():
        return net(x).square().mean()
    loss = port.loss(forward, net)
    loss.backward()
    port.step(optimizer)
"""


@pytest.mark.parametrize("script", [SAVED, SOFTENED])
def test_a_step_is_verified_whose_absent_parts_are_saved_or_named_otherwise(
    script: str, tmp_path: Path
) -> None:
    found = verified(script, tmp_path, ("float32",))
    assert found.passed, found.why_not


def test_a_slow_port_is_asked_for_as_many_losses_as_its_original_made(tmp_path: Path) -> None:
    modes = {mode: tmp_path / mode for mode in ("float32", "overflow")}
    for folder in modes.values():
        folder.mkdir()
    found = []
    for role, text in (("original", SLOW), ("port", PORTED)):
        script = tmp_path / f"{role}.py"
        script.write_text(text, encoding="utf-8")
        run_modes(role, script, modes, losses=20, at=3, enough=0.0)
        for mode, folder in modes.items():
            lines = (folder / f"{role}.jsonl").read_text(encoding="utf-8").splitlines()
            losses = [value for kind, value in map(json.loads, lines) if kind == "loss"]
            end, words = how_it_ended(role, folder)
            found.append((mode, len(losses), end))
            assert end == "ok", words
    assert found == [("float32", 3, "ok"), ("overflow", 5, "ok")] * 2


def test_lower_precision_is_judged_by_as_many_losses_of_float32() -> None:
    exact = (1.0, 0.9, 0.8, 0.7)
    one = Comparison(
        *("mixed", "different", (2, 2), 0.02, True, 0),
        original=(1.01, 0.9),
        port=(1.0, 0.909),
    )
    assert against_own(one, exact).verdict == "close"
    assert against_own(one, exact[:1]).verdict == "different"


INHERITED = f"""{HEAD}from abc import abstractmethod
import theirs
class Trainer(object):
    def __init__(self, bar=False):
        self.net: nn.Module = None
        self.optimizer = self.criterion = None
        self.schedule = None
        self.bar, self.rounds = bar, 4
    @abstractmethod
    def prepare(self):
        ...
    def fit(self, loader):
        self.net.train()
        if self.bar:
            with theirs.shown(loader) as shown:
                for x, y in shown:
                    self.once(x, y)
        else:
            for x, y in loader:
                self.once(x, y)
    def once(self, x, y):
        self.optimizer.zero_grad()
        loss = self.criterion(self.net(x.cuda()), y.cuda())
        loss.backward()
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
"""


@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_heirs_give_what_a_trainer_sets_to_none_and_one_of_two_loops_runs(
    tmp_path: Path, target: str
) -> None:
    found = verified(INHERITED, tmp_path, ("float32",), target=target)
    said = "\n".join(found.lines())
    assert found.passed, said
    assert "its other branch in place of self.bar" in said
    assert "without its forward pass" not in said


TWINS = f"""{HEAD}import theirs
{NETWORK}scaler = torch.cuda.amp.GradScaler()
def fit(loader, fast):
    if fast:
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = F.cross_entropy(net(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    else:
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x.cuda()), y.cuda()).backward()
            optimizer.step()
"""


def test_of_two_loops_the_one_in_mixed_precision_runs(tmp_path: Path) -> None:
    found = verified(TWINS, tmp_path, ("float32", "overflow"))
    said = "\n".join(found.lines())
    assert found.passed, said
    assert "its first branch in place of fast" in said
    assert "scale 65536 to 32768" in said


HANDED = f"""{HEAD}import abc
class Solver():
    def __init__(self, config):
        self.config = config
    def backward(self, loss):
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if torch.isfinite(norm):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return norm
    @abc.abstractmethod
    def set_model(self):
        raise NotImplementedError
"""


@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_a_loss_that_a_method_goes_back_from_is_of_the_network_that_it_trains(
    tmp_path: Path, target: str
) -> None:
    found = verified(HANDED, tmp_path, ("float32",), target=target)
    said = "\n".join(found.lines())
    assert found.passed, said
    assert "loss: of the network that it trains" in said


READ_AGAIN = f"""{HEAD}import theirs
{NETWORK}scaler = torch.cuda.amp.GradScaler()
train, held_out = theirs.loader(1), theirs.loader(2)
for epoch in range(4):
    for x, y in train:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            out = net(x)
            loss = F.cross_entropy(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    with torch.no_grad():
        for x, y in held_out:
            with torch.autocast("cuda"):
                out = net(x.cuda())
                loss = F.cross_entropy(out, y)
            print(loss.item())
"""


def test_what_a_step_gives_besides_its_loss_is_no_other_step(tmp_path: Path) -> None:
    found = verified(READ_AGAIN, tmp_path, ("float32",))
    said = "\n".join(found.lines())
    assert found.passed, said
    assert "not in the port" not in said
