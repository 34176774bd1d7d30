"""Steps verified without help: batches whose form tries find, and imports that are refused."""

from __future__ import annotations

import ast
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from mpcore_port.verify.batches import Layout, moves
from mpcore_port.verify.extract import extract
from mpcore_port.verify.left_out import may_go
from mpcore_port.verify.module import Module
from mpcore_port.verify.probe import Budget
from mpcore_port.verify.refused_imports import import_in, refused_imports
from mpcore_port.verify.stand_in import StandIn
from mpcore_port.verify.step import _Trying
from mpcore_port.verify.structure import Ask, Structure, asked_by, tracked
from mpcore_port.verify.synthetic import Batches, Mapped, Record, rows

from .ports import verified

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HELD = {
    "torch": torch,
    "_mpcore_record": Record,
    "_mpcore_mapped": Mapped,
    "_mpcore_rows": rows,
    "_mpcore_parts": [torch.ones(2, 3).numpy()] * 4,
}
LEAF = "torch.from_numpy(_mpcore_parts[0])"


@pytest.mark.parametrize(
    ("code", "asks", "shown"),
    [
        (LEAF, [("items", ()), ("key", ("a",))], "{'a': a}"),
        (LEAF, [("key", ("a",)), ("key", ("b",)), ("moves", ())], "({'a': a, 'b': b})"),
        (LEAF, [("attr", ("a",)), ("attr", ("b",))], "object(a=a, b=b)"),
        (LEAF, [("parts", ("a", "b", "c"))], "[a, b, c]"),
        (LEAF, [("rows", ("boxes",)), ("key", ("labels",))],
         "a list of each sample's ({'boxes': boxes, 'labels': labels})"),
        (f"[{LEAF}]", [("index", ("part0", "part1"))], "[x, part1]"),
        (f"{{'a': {LEAF}}}", [("attr", ("b",))], "({'a': x, 'b': b})"),
        (f"[{LEAF}]", [("key", ("a",))], "{'a': a}"),
    ],
)  # fmt: skip
def test_a_batch_becomes_what_it_was_asked_for(
    code: str, asks: list[tuple[str, tuple[str, ...]]], shown: str
) -> None:
    one = Structure.of([code], ["x"])
    for kind, names in asks:
        found = one.changed(Ask((0,), kind, names))
        assert found is not None
        one = found
    assert one.layouts[0].shown == shown
    assert one.changed(Ask((0,), *asks[-1])) is None  # it has it
    made = tracked(one.codes[0], 0, HELD)
    assert type(made) is not torch.Tensor


def test_parts_in_each_other_are_changed_where_they_are() -> None:
    one = Structure.of([f"{{'ego': {LEAF}}}", "torch.from_numpy(_mpcore_parts[1])"], ["ego", "y"])
    found = one.changed(Ask((0, 0), "key", ("mask",)))
    found = found and found.changed(Ask((1,), "parts", ("p", "q")))
    assert found is not None
    assert [layout.shown for layout in found.layouts] == ["{'ego': {'mask': mask}}", "[p, q]"]
    assert (
        found.codes[1] == "[torch.from_numpy(_mpcore_parts[1]), torch.from_numpy(_mpcore_parts[2])]"
    )


def _copied(batch: Any) -> Any:
    return {key: value for key, value in batch.items()}["b"]  # noqa: C416  # as scripts do


@pytest.mark.parametrize(
    ("code", "use", "ask"),
    [
        (f"{{'a': {LEAF}}}", lambda batch: batch["b"], ("key", ("b",))),
        (f"{{'a': {LEAF}}}", lambda batch: batch.b, ("attr", ("b",))),
        (f"{{'a': {LEAF}}}", lambda batch: batch.to("cpu"), ("moves", ("to",))),
        (f"{{'a': {LEAF}}}", lambda batch: batch.get("b").mean(), ("key", ("b",))),
        (f"{{'a': {LEAF}}}", _copied, ("key", ("b",))),
        (f"[{LEAF}]", lambda batch: batch["b"], ("key", ("b",))),
        (f"[{LEAF}]", lambda batch: batch[1], ("index", ("part0", "part1"))),
        (f"_mpcore_record(a={LEAF})", lambda batch: batch.b, ("attr", ("b",))),
    ],
)
def test_a_batch_notes_what_it_has_not(
    code: str, use: Callable[[Any], Any], ask: tuple[str, tuple[str, ...]]
) -> None:
    batch = tracked(code, 0, HELD)
    with pytest.raises(Exception) as raised:  # noqa: PT011  # each its own
        use(batch)
    assert asked_by(raised.value) == Ask((0,), *ask)
    assert asked_by(ValueError("of something else")) is None


ENGINE = """import torch
from theirs import make_loader, create_model
net = create_model().cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
for i, batch in enumerate(make_loader()):
    batch = {k: {n: one.cuda() for n, one in v.items()} for k, v in batch.items()}
    if batch["ego"]["mask"].sum() == 0:
        continue
    opt.zero_grad()
    with torch.cuda.amp.autocast():
        out = net(batch["ego"]["image"])
        loss = torch.nn.functional.mse_loss(out, batch["ego"]["label"]) + batch["w"]["a"].mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
"""


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_dictionaries_in_a_batch_are_found_by_trying(tmp_path: Path, target: str) -> None:
    done = verified(ENGINE, tmp_path, ("float32", "mixed"), target)
    assert done.passed, done.lines()
    assert any("batches are {'ego': {'mask': mask" in line for line in done.lines())


PREFETCHED = """import torch
from theirs import make_loader, create_model
net = create_model().cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
for x, y in make_loader():
    with torch.cuda.amp.autocast():
        loss = ((net(x) - y{moved}) ** 2).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
"""


@pytest.mark.parametrize(("moved", "placed"), [("", True), (".cuda()", False)])
def test_a_step_that_moves_no_batch_has_a_loader_that_does(
    tmp_path: Path, moved: str, placed: bool
) -> None:
    text = PREFETCHED.replace("{moved}", moved)
    module = Module(text)
    loop = next(node for node in module.tree.body if isinstance(node, ast.For))
    assert moves(module, loop) is not placed
    step = extract(text, tmp_path)
    assert (").cuda()" in step.codes[0]) is placed


@pytest.mark.slow
@pytest.mark.nightly
def test_losses_of_batches_that_the_loader_places_are_the_devices(tmp_path: Path) -> None:
    text = PREFETCHED.replace("(net(x) - y{moved}) ** 2", "x.float() * 0 + net(x).mean() - y")
    text = text.replace(".mean()\n", ".mean().mean()\n")
    done = verified(text, tmp_path, ("float32", "mixed"), "torch_npu")
    assert done.passed, done.lines()


REFUSED = """import torch
import torchnet as meters
from pytorch_warmup import LinearWarmup as W
net = torch.nn.Linear(4, 2).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
meter = meters.Average()
W(opt)
for step in range(4):
    x = torch.randn(8, 4).cuda()
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    meter.add(loss.item())
"""


def test_a_refusal_names_its_import() -> None:
    found = import_in("NotImplementedError: from a.b import c as d, e: its tensors are torch's")
    assert found is not None
    assert ast.unparse(found) == "from a.b import c as d, e"
    assert import_in("NotImplementedError: torch.fft.fft2: no equal") is None
    assert import_in("from . import c: its tensors are torch's") is None
    assert refused_imports('c = _refused("import c: why")\nd = _refused("x.y: why")') == [
        "import c"
    ]


@pytest.mark.slow
@pytest.mark.nightly
def test_what_is_not_installed_and_refused_is_nothing_on_both_sides(tmp_path: Path) -> None:
    done = verified(REFUSED, tmp_path, ("float32",))
    assert done.passed, done.lines()
    said = "refused by the port, with nothing in its place in this run: import torchnet as meters"
    assert any(said in line for line in done.lines()), done.lines()


TRAINER = """import torch
from theirs import Base
class Trainer(Base):
    def __init__(self, actor, loaders, optimizer, lr_scheduler=None, use_amp=False):
        self.actor, self.loaders, self.optimizer = actor, loaders, optimizer
        self.lr_scheduler = lr_scheduler
        if use_amp:
            self.scaler = torch.cuda.amp.GradScaler()
    def cycle(self, loader):
        self.actor.train(loader.training)
        for i, data in enumerate(loader, 1):
            data = data.to("cuda")
            data["epoch"] = 1
            with torch.autocast("cuda"):
                loss, stats = self.actor(data)
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            size = data["images"].shape[loader.stack_dim]
            self.told(stats, size)
    def told(self, new, size):
        for rate in self.lr_scheduler.get_last_lr():
            print(rate)
        for name, value in new.items():
            print(name, value, size)
    def train_epoch(self):
        for loader in self.loaders:
            if 1 % loader.epoch_interval == 0:
                self.cycle(loader)
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_a_trainer_that_is_given_loaders_and_an_actor_is_verified(tmp_path: Path) -> None:
    done = verified(TRAINER, tmp_path, ("float32", "mixed"), "torch_npu")
    assert done.passed, done.lines()


SPAWNED = """import torch
def main(model, loader):
    if torch.cuda.device_count() > 1:
        torch.multiprocessing.spawn(again, ({},), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
def again(rank, kwargs):
    main(**kwargs)
"""


def test_a_function_that_spawns_itself_is_one_from_outside(tmp_path: Path) -> None:
    assert "\nmain(" in extract(SPAWNED, tmp_path).call


def test_a_loader_has_what_scripts_ask_theirs_for() -> None:
    loader = Batches([torch.ones(2, 3)])
    assert loader.training
    assert repr(loader.stack_dim) == "<not there: loader.stack_dim>"
    assert not hasattr(loader, "something")
    assert Layout("alone", ("x",), placed=True).code() == f"{LEAF}.cuda()"


def test_some_parameters_of_a_network_that_is_not_there_are_its_parameters() -> None:
    network = StandIn("model")
    held = {id(one) for one in network.parameters()}
    assert {id(one) for one in network.backbone_parameters()} == held
    assert isinstance(StandIn("cfg").get_params(), StandIn)


TWO = """import torch
class Plain:
    def run_step(self):
        loss = self.model(next(self.loader)).mean()
        loss.backward()
        self.optimizer.step()
class Mixed(Plain):
    def run_step(self):
        with torch.autocast("cuda"):
            loss = self.model(next(self.loader)).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
"""


def test_of_two_trainers_the_one_with_mixed_precision_is_compared(tmp_path: Path) -> None:
    assert "_mpcore_owner = Mixed(" in extract(TWO, tmp_path).call


def test_tries_end_by_the_clock_too() -> None:
    late, early = _Trying(10.0, until=time.monotonic()), _Trying(10.0)
    with late.probe, early.probe:
        assert late.is_spent
        assert not early.is_spent
    assert Budget(10.0, clock=0.0).is_spent
    assert not Budget(10.0).is_spent


CALLED = """class Trainer:
    def train(self):
        for i in range(9):
            self.one()
    def one(self):
        loss = self.model(self.data)
        loss.backward()
        self.{told}.update(loss=loss)
"""


@pytest.mark.parametrize(("told", "may"), [("meter", True), ("scaler", False), ("ema", False)])
def test_what_a_meter_is_told_in_what_a_loop_calls_may_be_left_out(told: str, *, may: bool) -> None:
    module = Module(CALLED.replace("{told}", told))
    assert may_go(module, 8, (3, 4), (8, 4)) is may


def test_an_optimizer_is_made_for_lists_of_parameters_of_which_one_is_empty() -> None:
    network = torch.nn.Linear(2, 1)
    groups = [{"params": torch.nn.ParameterList()},
              {"params": torch.nn.ParameterList(network.parameters()), "lr": 0.5}]  # fmt: skip
    optimizer = StandIn("eval")(groups, 0.1)
    assert isinstance(optimizer, torch.optim.SGD)
    assert [len(group["params"]) for group in optimizer.param_groups] == [0, 2]
    assert isinstance(StandIn("build")([{"params": []}]), StandIn)


CHECKED = """import torch
from theirs import check, loader
a, b = check("a"), check("b")
net = torch.nn.Linear(a, b)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x in loader:
    opt.zero_grad()
    net(x).mean().backward()
    opt.step()
"""


def test_calls_in_a_row_are_left_out_together(tmp_path: Path) -> None:
    line = extract(CHECKED, tmp_path, [3]).body.splitlines()[2]
    assert line == "a, b = _mpcore_missing('check')(), _mpcore_missing('check')"


DECAYS = """import torch
def run(loader, model, optimizer, lr_schedule, wd_schedule):
    for i, (x, y) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = lr_schedule[i]
            group["weight_decay"] = wd_schedule[i]
        loss = torch.nn.functional.mse_loss(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_a_decay_that_a_schedule_which_is_not_there_sets_is_a_number(tmp_path: Path) -> None:
    done = verified(DECAYS, tmp_path, ("float32",))
    assert done.passed, done.lines()
