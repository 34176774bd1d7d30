"""Steps verified without help: what decorators hand over, and what ports refuse to import."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
import torch

from mpcore_port.engine import port_text
from mpcore_port.stubs.devices import _of_one_rank
from mpcore_port.targets import Options, load_target
from mpcore_port.verify.absent import _to_networks
from mpcore_port.verify.beside import in_order
from mpcore_port.verify.extract import extract
from mpcore_port.verify.left_out import failing, makers_of_models, may_go
from mpcore_port.verify.module import module_of
from mpcore_port.verify.refused_imports import import_in
from mpcore_port.verify.roles import number_of, says_number
from mpcore_port.verify.stand_in import StandIn

from .ports import verified

if TYPE_CHECKING:
    from pathlib import Path

DECORATED = """import torch
from handed_over import setting
from ffcv.loader import (  # what the port refuses
    Loader,
    OrderOption,
)
class Trainer:
    @setting("data.workers")
    def __init__(self, workers):
        self.loader = Loader("train", num_workers=workers, order=OrderOption.RANDOM)
        self.net = torch.nn.Linear(16, 4).cuda()
        self.begin()
        self.scaler = torch.cuda.amp.GradScaler()
    @setting("sgd.momentum")
    @setting("sgd.label_smoothing")
    def begin(self, momentum, *, label_smoothing):
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=momentum)
        self.loss = torch.nn.CrossEntropyLoss(label_smoothing=label_smoothing)
    @setting("epochs")
    def train(self, epochs):
        for epoch in range(epochs):
            self.one(epoch)
    @setting("log_level")
    def one(self, epoch, log_level):
        for x, y in self.loader:
            self.sgd.zero_grad()
            with torch.autocast("cuda"):
                loss = self.loss(self.net(x.cuda()), y.cuda())
            self.scaler.scale(loss).backward()
            self.scaler.step(self.sgd)
            self.scaler.update()
    @classmethod
    @setting("world_size")
    def begun(cls, world_size):
        cls().train()
if __name__ == "__main__":
    Trainer.begun()
"""


def test_decorators_that_are_not_there_hand_over_arguments() -> None:
    setting = StandIn("fastargs.param", imported=True)

    @setting("lr.momentum")
    @setting("lr.kind")
    def begin(net: str, momentum: float, kind: object, use_amp: object, *, more: int = 3) -> object:
        return net, momentum, repr(kind), use_amp, more

    assert begin("net") == ("net", 0.9, "<not there: args.kind>", True, 3)
    assert begin("net", 0.5, kind="sgd", use_amp=False) == ("net", 0.5, "'sgd'", False, 3)


def test_the_kind_of_a_schedule_is_no_number() -> None:
    assert not says_number("lr_schedule_type")
    assert number_of("lr_schedule") == number_of("cosine_scheduler") == 0.01


def test_a_refused_import_of_several_lines_is_said_whole() -> None:
    found = port_text(DECORATED, load_target("torch_npu"), Options())
    whole = "from ffcv.loader import Loader, OrderOption"
    assert f'OrderOption = _mpcore_refused("{whole}: ' in found.text
    assert import_in(f"{whole}: because") is not None


@pytest.mark.slow
@pytest.mark.nightly
def test_what_decorators_hand_over_is_verified_and_what_is_refused(tmp_path: Path) -> None:
    done = verified(DECORATED, tmp_path, ("float32", "mixed"), "torch_npu")
    assert done.passed, done.lines()


SHARED = """import torch
from torch import nn
from nets import make
def main(loader, rank=0):
    torch.distributed.init_process_group("nccl", init_method="env://", world_size=1, rank=0)
    plain = nn.Sequential(nn.Linear(16, 4), nn.BatchNorm1d(4))
    plain = nn.SyncBatchNorm.convert_sync_batchnorm(plain).to(rank)
    plain = nn.parallel.DistributedDataParallel(plain, device_ids=[rank])
    net = make("net").to(rank)
    groups = [{"params": net.get_slow_params(), "lr": 0.01}]
    groups.append({"params": net.get_fast_params(), "lr": 0.1})
    adam = torch.optim.AdamW(groups + [{"params": plain.parameters()}], lr=0.1)
    scaler = torch.cuda.amp.GradScaler()
    for x, y in loader:
        adam.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.cross_entropy(plain(x.to(rank)), y.to(rank))
            loss = loss + net(x.to(rank)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()
"""


def test_groups_of_one_network_share_its_weights() -> None:
    net = StandIn("net")
    slow = net.get_slow_params()
    assert len(slow) == 4
    fast = net.get_fast_params()
    assert len(slow) == len(fast) == 2
    torch.optim.SGD([{"params": slow}, {"params": fast, "lr": 0.1}], lr=0.01)
    assert net.get_slow_params() is slow


def test_the_same_method_gives_others_by_what_it_is_called_with() -> None:
    net = StandIn("net")
    slow, fast = net.get_params(key="1x"), net.get_params(key="10x")
    assert not {*map(id, slow)} & {*map(id, fast)}


def test_layers_that_are_synchronized_stand_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda _: 1)
    plain = torch.nn.modules.batchnorm._BatchNorm.forward
    forward = _of_one_rank(torch.nn.SyncBatchNorm.forward, plain)
    x = torch.arange(12.0).reshape(4, 3).square()
    layer, other = torch.nn.SyncBatchNorm(3), torch.nn.BatchNorm1d(3)
    assert torch.equal(forward(layer, x), other(x))
    assert torch.equal(layer.running_var, other.running_var)


@pytest.mark.slow
@pytest.mark.nightly
def test_groups_and_synchronized_layers_are_verified(tmp_path: Path) -> None:
    done = verified(SHARED, tmp_path, ("float32", "mixed"), "torch_npu")
    assert done.passed, done.lines()
    assert done.step is not None
    assert not done.step["without_forward"]


TERMS = """import torch
from augments import Flip, Shift
from geometry import Pose, runs, shapes
def main(net, loader, optimizer, scaler, epochs):
    flips = torch.nn.Sequential(Flip(), Shift(by=3))
    history = runs.history
    for epoch in range(len(history), epochs):
        for x, y in loader:
            pose = Pose(flips(x.cuda())).inv()
            total = 0.0
            for i, (out, (low, high), *more) in enumerate(net(pose, y.cuda())):
                loss = shapes(out, low.inv() * high).log()
                total = total + loss
            optimizer.zero_grad()
            scaler.scale(total).backward()
            scaler.step(optimizer)
            scaler.update()
"""


def test_a_loop_without_its_forward_pass_takes_one_turn_apart(tmp_path: Path) -> None:
    step = extract(TERMS, tmp_path, forward=False)
    assert "for i, (out, (low, high), *more) in _mpcore_turn((0, (0, (0, 0, ), ), )):" in step.body
    assert (11, "one turn in place of enumerate(net(pose, y.cuda()))") in step.replaced


def test_modules_of_torch_hold_networks_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    add = _to_networks(torch.nn.Module.add_module)
    monkeypatch.setattr(torch.nn.Module, "add_module", add)
    held = torch.nn.Sequential(StandIn("augments.Flip")(), torch.nn.ReLU())
    assert isinstance(held[0], torch.nn.Module)
    listed = torch.nn.ModuleList([StandIn("nets.Head")(10)])
    assert len(list(listed.parameters())) == 4


def test_no_epoch_was_before_the_first() -> None:
    assert len(StandIn("runs.history")) == 0
    assert len(StandIn("runs.dataset")) > 0


@pytest.mark.slow
@pytest.mark.nightly
def test_terms_of_what_no_tensor_can_do_are_verified_without_them(tmp_path: Path) -> None:
    done = verified(TERMS, tmp_path, ("float32", "mixed"), "torch_npu")
    assert done.passed, done.lines()
    assert done.step is not None
    assert done.step["without_forward"]


def test_no_module_beside_a_script_hides_the_package_that_it_is_part_of(tmp_path: Path) -> None:
    inner = tmp_path / "net" / "model"
    inner.mkdir(parents=True)
    (inner / "other.py").touch()
    assert in_order(inner, [tmp_path]) == [str(tmp_path), str(inner)]
    (inner / "net.py").touch()
    assert in_order(inner, [tmp_path]) == [str(tmp_path)]
    (tmp_path / "net" / "__init__.py").touch()
    assert in_order(inner, [tmp_path]) == [str(tmp_path), str(inner)]


WRAPPED = """import torch
from nets import Net
def main(loader):
    net = torch.nn.parallel.DistributedDataParallel(Net(3).cuda(), device_ids=[0])
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in loader:
        net(x).mean().backward()
        sgd.step()
"""


def test_a_network_that_is_wrapped_where_it_is_made_may_be_left_out() -> None:
    module = module_of(WRAPPED)
    left = failing(module, 4)
    assert left is not None
    assert ast.unparse(left) == "Net(3)"
    assert may_go(module, 4, (6, 8))
    assert makers_of_models(module) == [4]
