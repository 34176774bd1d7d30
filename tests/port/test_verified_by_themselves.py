"""Steps verified without help: what trainers resume from, set themselves, count, and look up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mindspore
import pytest
import torch

from mpcore_port.mindspore.stand_in import CellKit
from mpcore_port.verify.asked import Asked, Kept, Replayed
from mpcore_port.verify.extract import extract
from mpcore_port.verify.kit import TorchKit
from mpcore_port.verify.left_out import may_go
from mpcore_port.verify.module import Module
from mpcore_port.verify.nodes import Node
from mpcore_port.verify.roles import SETTINGS, number_of
from mpcore_port.verify.scaler import with_state
from mpcore_port.verify.search import Search
from mpcore_port.verify.stand_in import StandIn, _words, keep
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


BEHIND = """def run(loader, model, criterion, optimizer, ranks, metrics, meter):
    for x, y in loader:
        {first}
        loss.backward()
        optimizer.step()
        top = metrics.correct(x, y)
        loss, top = ranks.all_reduce([loss, top])
        meter.update(top.item(), loss.item())
        {last}
"""


@pytest.mark.parametrize(
    ("first", "last", "may"),
    [
        ("loss = criterion(model(x), y)", "pass", True),
        ("loss = loss + criterion(model(x), y)", "pass", False),
        ("pass", "pass", False),
        ("loss = criterion(model(x), y)", "loss.backward()", False),
    ],
)
def test_a_loss_that_is_made_anew_may_be_reported_with_others(
    first: str, last: str, *, may: bool
) -> None:
    module = Module(BEHIND.format(first=first, last=last))
    assert may_go(module, 6, (2, 9)) is may


def test_what_is_absent_is_a_class_of_what_it_makes() -> None:
    absent = StandIn("theirs.Batch")
    assert isinstance(absent(), absent)  # type: ignore[arg-type]
    assert not isinstance(torch.ones(1), (dict, absent))  # type: ignore[arg-type]
    assert not issubclass(dict, absent)  # type: ignore[arg-type]


def test_what_mixes_pictures_gives_them_back_with_shares_of_classes() -> None:
    mix = StandIn("timm.data.Mixup")(num_classes=4)
    pictures, labels = torch.rand(3, 3, 8, 8), torch.tensor([0, 3, 1])
    same, shares = mix(pictures, labels)
    assert same is pictures
    assert shares.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]]
    assert mix(pictures, shares)[1] is shares
    kit, own = CellKit(None), mindspore.Tensor([0, 3, 1])
    assert kit.shares(own, 4).asnumpy().tolist() == shares.tolist()
    assert kit.shares(kit.shares(own, 4), 4).dtype == mindspore.float32


LISTED = """def run(loader, model, optimizer):
    for inputs, labels in loader:
        if isinstance(inputs, (list,)):
            for i in range(len(inputs)):
                inputs[i] = inputs[i].cuda()
        size = inputs[0].size(0)
        model(inputs, labels).backward()
        optimizer.step()
"""


def test_what_is_asked_whether_it_is_a_list_and_read_as_one_is_one(tmp_path: Path) -> None:
    (layout,) = extract(LISTED, tmp_path).layouts
    assert layout.form == "([{}], {},)"


ALIASED = """import argparse
import torch
import nets
from theirs import make_optimizer, load
parser = argparse.ArgumentParser()
arg = parser.add_argument
arg("--level", default="O1")
arg("folder")
args = parser.parse_args()
model = nets.__dict__[args.folder]().cuda()
optimizer, scheduler = make_optimizer(args, model)
scaler = torch.cuda.amp.GradScaler()
for x, y in load(args.level):
    with torch.autocast("cuda"):
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
MAKES_BOTH = 11


def test_options_that_are_added_by_another_name_are_there(tmp_path: Path) -> None:
    step = extract(ALIASED, tmp_path)
    assert 'arg("--level", default="O1")' in step.body
    assert step.args == ("mpcore",)


def test_an_optimizer_that_is_made_beside_a_scheduler_is_one(tmp_path: Path) -> None:
    step = extract(ALIASED, tmp_path, {MAKES_BOTH})
    line = step.body.splitlines()[MAKES_BOTH - 1]
    assert line == (
        "optimizer, scheduler = _mpcore_missing('optimizer make_optimizer')(args, model)"
    )
    optimizer, scheduler = StandIn("optimizer make_optimizer")(
        {}, StandIn("model")._mpcore_module()
    )
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert isinstance(scheduler, StandIn)


ASKED = """import torch
def train(model, loader, optimizer, scaler, callbacks=None, hooks=None, made=None):
    made = made or {}
    for x in loader:
        for callback in callbacks["on_batch"]:
            callback(model)
        if hooks is not None:
            hooks["on_batch"](made["x"])
        with torch.autocast("cuda"):
            loss = model(x.cuda()).float().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


def test_what_a_function_cannot_do_without_is_given_to_it(tmp_path: Path) -> None:
    call = extract(ASKED, tmp_path).call
    assert "callbacks=" in call
    assert "hooks=" not in call
    assert "made=" not in call


NESTED = """import torch
def train(model, criterion, loader, optimizer, device, parts):
    for samples, targets in loader:
        samples.tensors = torch.nn.functional.interpolate(samples.tensors, size=parts)
        for i in range(0, 8, 2):
            inner = model(samples.tensors[i:i + 2], samples.mask[i:i + 2].to(device))
            own = [{k: v.to(device) for k, v in t.items()} for t in targets[i:i + 2]]
            criterion(inner, own).backward()
        optimizer.step()
"""
OBJECT = """import torch
class Trainer:
    def train(self, loader):
        for batch in loader:
            batch = batch.to("cuda")
            self.run_step(batch)
            self.optimizer.step()
    def run_step(self, batch):
        loss, size = self.one(batch, self.model)
        self.scaler.scale(loss).backward()
    def one(self, batch, model):
        batch.weight = 1.0
        out = model(batch.frames)
        return self.loss(out, batch.masks) * batch.weight, len(batch.frames)
"""


def test_parts_of_a_batch_may_hold_tensors_as_attributes(tmp_path: Path) -> None:
    (layout,) = extract(NESTED, tmp_path).layouts
    assert layout.names == ("samples.tensors", "samples.mask", "targets", "targets")
    assert layout.form.startswith("(_mpcore_record(tensors={}, mask={}), [{{'boxes': ")


def test_a_batch_has_what_a_method_reads_of_it_that_no_tensor_has(tmp_path: Path) -> None:
    (layout,) = extract(OBJECT, tmp_path).layouts
    assert (layout.kind, layout.names) == ("object", ("frames", "masks"))


def test_a_setting_is_a_size_where_a_function_takes_no_tensor() -> None:
    resize = torch.nn.functional.interpolate
    found = resize(torch.rand(1, 2, 4, 4), size=StandIn("cfg.input_size"), mode="bilinear")
    assert found.shape == (1, 2, 16, 16)
    assert torch.max(torch.zeros(1), StandIn("args.heads")).item() == 4


def test_what_is_resized_is_looked_for_among_maps_first() -> None:
    tried: list[str] = []

    def run(text: str) -> dict[str, object]:
        tried.append(text.partition(" -> ")[2])
        is_map = tried[-1] == "map"
        error = "" if is_map else "Got 3D input, but bilinear mode needs 4D input (line 3)"
        return {"far": 1, "error": error, "stand_ins": ["model"], "enough": is_map}

    job = {"names": ["x", "y"], "target": 1, "count": 2}
    found = Search(job, [], run, lambda: False).find()
    assert found["answer"].endswith(" -> map")
    assert set(tried) == {"", "map"}


@pytest.mark.parametrize(
    ("line", "may"),
    [
        ("conf_mat.update(y.flatten(), x.flatten())", True),
        ("self.meters['acc'].update(x, y)", True),
        ("ema.update(model)", False),
        ("format.update(x)", False),
        ("scaler.update(x)", False),
    ],
)
def test_what_a_meter_is_told_may_be_left_out(line: str, *, may: bool) -> None:
    module = Module(BEHIND.format(first=line, last="loss = criterion(x)"))
    assert may_go(module, 3, (2, 9)) is may


def test_a_scaler_that_only_a_run_in_float32_has_off_still_says_its_scale() -> None:
    state = with_state(torch.amp.GradScaler.state_dict)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    assert state(scaler) == {}
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert state(scaler)["scale"] == 8.0
    vars(scaler).update(_mpcore_was_on=True, _enabled=False)
    assert state(scaler)["scale"] == 1.0
    assert state(scaler).keys() == torch.amp.GradScaler("cpu").state_dict().keys()


SCALES = """import torch
class Scaler:
    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()
    def __call__(self, loss, optimizer):
        self._scaler.scale(loss).backward()
        self._scaler.step(optimizer)
        self._scaler.update()
    def state_dict(self):
        return self._scaler.state_dict()
net = torch.nn.Linear(3, 2).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loss_scaler = Scaler()
for x, y in torch.utils.data.DataLoader(data):
    with torch.autocast("cuda"):
        loss = torch.nn.functional.mse_loss(net(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss_scaler(loss, optimizer)
    print(loss_scaler.state_dict()["scale"])
"""


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_a_step_that_reports_its_scale_is_verified_in_float32(tmp_path: Path, target: str) -> None:
    done = verified(SCALES, tmp_path, ("float32", "mixed"), target)
    assert done.passed, done.lines()


def test_settings_of_a_file_that_is_not_there_stand_in_under_every_name() -> None:
    settings = Node(StandIn("config"), lr=0.5)
    assert settings.lr == 0.5
    assert isinstance(settings.train.kind, StandIn)
    assert isinstance(settings["train"]["kind"], StandIn)
    assert not hasattr(settings, "other")
    assert not hasattr(Node(lr=0.5), "train")


def test_an_optimizer_is_made_for_the_network_that_the_same_object_gave() -> None:
    exp = StandIn("exp")
    model = exp.get_model()
    optimizer = exp.get_optimizer(8)
    held = {id(one) for group in optimizer.param_groups for one in group["params"]}
    assert held == {id(one) for one in model.parameters()}


def test_a_port_that_compares_a_word_with_others_first_takes_the_originals(tmp_path: Path) -> None:
    try:
        keep(Kept(tmp_path / "asked"))
        asked = StandIn("cfg.way")
        assert [asked == word for word in ("mean", "sum")] == [True, False]
        _words.clear()
        keep(Replayed(tmp_path / "asked"))
        assert [asked == word for word in ("sum", "mean")] == [False, True]
    finally:
        keep(Asked())
        _words.clear()


PLACED = """import torch
class Trainer:
    def __init__(self, args, context):
        self.context = context
        self.model = torch.nn.Linear(3, 2).cuda(self.context.gpu)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def train(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            self.model(x.cuda()).mean().backward()
            self.optimizer.step()
"""


def test_what_attributes_are_read_of_is_no_number_by_its_name(tmp_path: Path) -> None:
    assert 'context=_mpcore_missing("context")' in extract(PLACED, tmp_path).call


def test_a_number_of_a_group_of_settings_is_no_default() -> None:
    settings = StandIn("configer")
    assert settings.get("iters") < settings.get("solver", "max_iters")
    assert not settings.get("network", "resume_val")
    assert settings.get("solver", "sgd") == "sgd"
