"""Steps verified without help: networks that keep their names, flags, hosts, closures, and sets."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from mpcore_port.verify.extract import extract
from mpcore_port.verify.judge import Comparison, stopped_alone
from mpcore_port.verify.left_out import imports_beside, makers_of_models, may_go
from mpcore_port.verify.module import Module
from mpcore_port.verify.required import required_arguments
from mpcore_port.verify.roles import is_called_loss, number_of
from mpcore_port.verify.run import _raised
from mpcore_port.verify.stand_in import StandIn
from mpcore_port.verify.synthetic import passes_on

from .ports import verified

if TYPE_CHECKING:
    from pathlib import Path

TARGETS = ("torch_npu", "mindspore")

SURGERY = """import torch
from theirs import build, cut, loader
def train(cfg):
    net = build(cfg)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler()
    for x, y in loader:
        with torch.cuda.amp.autocast():
            loss = torch.nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        net, pruned = cut(net, cfg)
"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_network_that_a_call_gives_back_beside_others_is_the_one_that_trains(
    tmp_path: Path, target: str
) -> None:
    done = verified(SURGERY, tmp_path, ("float32", "mixed"), target)
    assert done.passed, done.why_not
    assert done.comparisons[0].steps == 4


def test_a_network_that_an_attribute_holds_is_a_module() -> None:
    class Owner:
        def __init__(self) -> None:
            self.net = StandIn("theirs.make")()
            self.of = Owner.__new__(Owner)
            self.of.model = StandIn("theirs.make")()

    owner = Owner()
    assert isinstance(owner.net, torch.nn.Module)
    assert isinstance(owner.of.model, torch.nn.Module)


def test_private_methods_of_a_script_are_there_of_what_stands_for_its_network() -> None:
    net = StandIn("model")._mpcore_module()
    assert isinstance(net._init_weights, StandIn)
    assert not hasattr(net, "_init_weights")


FLAGS = """import argparse
import torch
def train(args):
    net = torch.nn.Linear(16, 4).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in torch.utils.data.DataLoader(None):
        with torch.autocast("cuda"):
            loss = torch.nn.functional.mse_loss(net(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
parser = argparse.ArgumentParser()
parser.add_argument("--fit", action="store_true")
args = parser.parse_args()
if args.fit:
    train(args)
else:
    print("nothing to do")
"""


def test_the_flag_behind_which_the_step_is_is_given(tmp_path: Path) -> None:
    assert extract(FLAGS, tmp_path).args == ("--fit",)
    done = verified(FLAGS, tmp_path, ("float32",), "torch_npu")
    assert done.passed, done.why_not


RANKED = """import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
torch.distributed.barrier(device_ids=[args.local_rank])
"""


def test_a_rank_that_a_launcher_would_give_is_given_where_nothing_asks_for_it(
    tmp_path: Path,
) -> None:
    assert required_arguments(Module(RANKED), tmp_path) == ("--local_rank", "0")
    asks = f"{RANKED}if args.local_rank != -1:\n    pass\n"
    assert required_arguments(Module(asks), tmp_path) == ()


def test_hosts_of_loops_give_back_what_they_are_handed() -> None:
    assert passes_on("host.setup_dataloaders", ([1],), {}) == [1]
    assert passes_on("host.prepare", (1, 2), {}) == (1, 2)
    assert passes_on("host.gather", ([1],), {}) is None


TIMED = """import torch
from theirs import Net, timer
def train(loader, epochs=1):
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler()
    for x, y in loader:
        def step():
            with torch.autocast("cuda"):
                loss = torch.nn.functional.mse_loss(net(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return float(loss), 1.0
        (loss, rate), seconds = timer(step)
        print(loss, rate, seconds)
"""


def test_a_step_that_is_handed_to_what_times_it_is_run(tmp_path: Path) -> None:
    assert extract(TIMED, tmp_path).loop == (7, 17)
    done = verified(TIMED, tmp_path, ("float32", "mixed"), "torch_npu")
    assert done.passed, done.why_not


CALLED = """import torch
def fit(net, loss, optimizer, loader, fp16, scaler):
    for step, batch in enumerate(loader):
        x, y = batch[0].cuda(), batch[1].cuda()
        optimizer.zero_grad()
        if not fp16:
            out = loss(net(x), y)
            out.backward()
            optimizer.step()
        else:
            with torch.cuda.amp.autocast():
                out = loss(net(x), y)
            scaler.scale(out).backward()
            scaler.step(optimizer)
            scaler.update()
"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_loss_that_is_called_is_a_function_and_a_scaler_is_handed_in(
    tmp_path: Path, target: str
) -> None:
    done = verified(CALLED, tmp_path, ("float32", "mixed"), target)
    assert done.passed, done.why_not
    assert done.step is not None
    assert "loss: a function, a stand-in" in done.step["assumed"]


def test_losses_are_functions_where_they_are_called_alone() -> None:
    assert is_called_loss("loss", "out = loss(a, b)")
    assert not is_called_loss("loss", "out = self.loss(a, b)")
    assert is_called_loss("loss", "out = self.loss(a, b)", "self.")
    assert not is_called_loss("focal", "out = focal(a, b)")


SETS = """import torch
from theirs import Coder, loader
class Trainer:
    def __init__(self):
        self.coder = Coder().cuda()
        every, some = set(self.coder.parameters()), set(self.coder.parameters())
        self.optimizer = torch.optim.SGD(every & some, lr=0.1)
        self.scaler = torch.cuda.amp.GradScaler()
    def train(self):
        for x, y in loader:
            with torch.cuda.amp.autocast():
                loss = torch.nn.functional.mse_loss(self.coder(x.cuda()), y.cuda())
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""


def test_parameters_of_sets_get_the_weights_that_were_made_in_their_place(tmp_path: Path) -> None:
    done = verified(SETS, tmp_path, ("float32",))
    assert done.passed, done.why_not


PACKAGE = """import torch
from .ranks import is_first
def train_one_epoch(model, loader, optimizer):
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = torch.nn.functional.mse_loss(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_first():
            print(loss.item())
"""


def test_modules_of_the_package_around_a_script_are_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "laion_clap"
    folder.mkdir()
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "ranks.py").write_text("def is_first():\n    return True\n", encoding="utf-8")
    done = verified(PACKAGE, folder, ("float32",))
    assert done.step is not None
    assert done.step["elsewhere"] == []


ITEMS = """import torch
import odd
def train(model, optimizer, loader):
    for batch in loader:
        graphs = batch.rows[0].split(" ")[3]["x"] + 1
        unknown = graphs.x == -1
        loss = torch.nn.functional.mse_loss(model(graphs.x), graphs.y)
        loss[unknown] = loss[unknown] * 0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_items_of_a_loss_that_a_batch_chooses_go_with_the_forward_pass(tmp_path: Path) -> None:
    step = extract(ITEMS, tmp_path, forward=False)
    line = step.body.splitlines()[7].strip()
    assert line == "if _mpcore_never: loss[unknown] = loss[unknown] * 0"


IMPORTS = """from theirs import a
from theirs.deep import b
from others import c
from theirs import d
import torch
weights = torch.from_numpy(a.load("weights"))
for x in c:
    loss = d(x)
    loss.backward()
"""


def test_a_package_of_which_two_imports_fail_is_left_out_at_once() -> None:
    module = Module(IMPORTS)
    assert imports_beside(module, 1, set()) == []
    assert imports_beside(module, 2, {1}) == [2, 4]
    assert imports_beside(module, 3, {1}) == []
    assert may_go(module, 6, (7, 9))
    assert makers_of_models(module) == []


def test_numbers_of_all_epochs_are_more_than_one() -> None:
    assert number_of("cfg.trainer.epoch_full") == number_of("cfg.iters_total") == 64


def test_a_port_that_stops_where_something_stands_in_is_not_called_different() -> None:
    words = "the port stopped after 1 losses: ValueError: no"
    one = Comparison("mixed", "different", (20, 1), 0.0, scales=False, first=None, words=words)
    assert stopped_alone(one).verdict == "not compared"
    far = Comparison("mixed", "different", (20, 1), 0.5, scales=False, first=0, words=words)
    assert stopped_alone(far).verdict == "different"
    both = Comparison("mixed", "different", (20, 20), 0.0, scales=False, first=3)
    assert stopped_alone(both).verdict == "different"


def test_what_an_object_complains_of_that_an_error_left_is_not_why() -> None:
    text = "ValueError: no such file\nException ignored in: <function C.__del__>\nAttributeError: f"
    assert _raised(text).strip() == "ValueError: no such file"
    assert _raised("ValueError: no") == "ValueError: no"


HELD = """import torch
import mindspore
import mpcore_port_runtime as port
from mpcore_port.mindspore.stand_in import stand_in_for_cells
from mpcore_port.verify.stand_in import StandIn
stand_in_for_cells(port)
assert isinstance(port.put(StandIn("model.gain"), StandIn("model.other")), StandIn)
average = port.EMA(StandIn("model"))
average.update()
assert isinstance(average.ema_model, mindspore.nn.Cell)
assert isinstance(StandIn("net")._mpcore_module()._init_weights, StandIn)
"""


def test_functions_of_ports_take_stand_ins_as_methods_do(tmp_path: Path) -> None:
    script = tmp_path / "held.py"  # in a process of its own: tensors take stand-ins from then on
    script.write_text(HELD, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


HALVES = """import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
net = torch.nn.Linear(2, 2)
"""


def test_of_two_ways_to_compute_in_16_bits_regions_are_switched_on(tmp_path: Path) -> None:
    assert required_arguments(Module(HALVES), tmp_path) == ("--fp16", "--amp")
    halved = f"{HALVES}if args.fp16:\n    net = net.half()\n"
    assert required_arguments(Module(halved), tmp_path) == ("--amp",)
