"""Steps verified without help: what scripts hand on by name, dictionaries, accuracies, settings."""

from __future__ import annotations

import ast
import dataclasses
import dis
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mpcore_port.verify.as_dict import asked_at_once, gives_dict, taken_as_dict
from mpcore_port.verify.batches import taken_apart_at
from mpcore_port.verify.extract import extract
from mpcore_port.verify.left_out import may_go
from mpcore_port.verify.module import Module
from mpcore_port.verify.nodes import Node, class_of
from mpcore_port.verify.omega import NAMES, OmegaConf
from mpcore_port.verify.reported import is_only_reported
from mpcore_port.verify.roles import flag_of
from mpcore_port.verify.settings_files import _copy, named_in
from mpcore_port.verify.synthetic import Missing, missing

from .ports import verified

if TYPE_CHECKING:
    from collections.abc import Iterator

# --- what is only reported ------------------------------------------------------------------------

HEAD = """
def run(loader, model, criterion, optimizer, scaler, scheduler, meter):
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        {line}
        {use}
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scheduler.step()
    return meter
"""


def _call(line: str, use: str) -> tuple[Module, ast.Call]:
    module = Module(HEAD.format(line=line, use=use))
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    return module, next(call for call in calls if ast.unparse(call.func) == "measured")


@pytest.mark.parametrize(
    "use",
    [
        "meter.update(a.item(), x.size(0))",
        "print(f'{a} {b[0]:.3f}')",
        "best = max(a, b)",
        "history = [a, b]; meter.append(history)",
    ],
)
def test_what_meters_and_prints_get_is_only_reported(use: str) -> None:
    module, call = _call("a, b = measured(out, y, topk=(1, 5))", use)
    assert is_only_reported(module, call)
    assert may_go(module, call.lineno, (3, 10))


@pytest.mark.parametrize(
    "use",
    [
        "loss = loss + a",
        "loss *= a",
        "parts = []; parts.append(a); loss = sum(parts)",
        "scheduler.step(a)",
        "if a > 3: break",
        "if a > 3: optimizer.step()",
        "optimizer.weight = a",
        "for one in a: loss = loss + one",
    ],
)
def test_what_trains_is_not(use: str) -> None:
    module, call = _call("a, b = measured(out, y)", use)
    assert not is_only_reported(module, call)
    assert not may_go(module, call.lineno, (3, 10))


# --- dictionaries ---------------------------------------------------------------------------------


def _by_items(criterion, out):  # type: ignore[no-untyped-def]
    found = criterion(out)
    return sum(found.values())


def _by_name(criterion, out):  # type: ignore[no-untyped-def]
    found = criterion(out)
    return found["loss"]


def _as_rows(criterion, out):  # type: ignore[no-untyped-def]
    found = criterion(out)
    return found[0] + found.sum()


def _searched(criterion, out):  # type: ignore[no-untyped-def]
    found = criterion(out)
    return "all" in found


def test_a_caller_that_asks_for_items_or_names_takes_a_dictionary() -> None:
    callers = (_by_items, _by_name, _searched, _as_rows)
    asked = [taken_as_dict(one.__code__, "found") for one in callers]
    assert asked == [True, True, True, False]
    assert not taken_as_dict(_by_items.__code__, "out")


def test_a_loss_that_a_class_holds_gives_one() -> None:
    text = "class A:\n def __init__(self, crit):\n  self.crit = crit\n"
    text += " def run(self, x):\n  found = self.crit(x)\n  return {}\n"
    assert gives_dict(Module(text.format("sum(found.values())")), "crit")
    assert gives_dict(Module(text.format("found['all']")), "crit")
    assert not gives_dict(Module(text.format("found.mean()")), "crit")


def test_what_is_asked_of_a_call_at_once_is_known() -> None:
    def at_once(net, x):  # type: ignore[no-untyped-def]
        return net(x)["out"]

    def later(net, x):  # type: ignore[no-untyped-def]
        return net(x)[0]

    calls = [
        [one.offset for one in dis.get_instructions(f) if one.opname.startswith("CALL")]
        for f in (at_once, later)
    ]
    assert any(asked_at_once(at_once.__code__, offset) for offset in calls[0])
    assert not any(asked_at_once(later.__code__, offset) for offset in calls[1])


# --- settings -------------------------------------------------------------------------------------


def test_settings_of_yacs_are_held_by_name_and_merged() -> None:
    node = class_of("yacs.config", "CfgNode")
    assert node is Node
    cfg = Node()
    cfg.TRAIN = Node()
    cfg.TRAIN.LR, cfg.TRAIN.NAME = 0.1, "sgd"
    cfg.merge_from_list(["TRAIN.LR", "0.5", "DATA.SIZE", "32"])
    other = cfg.clone()
    other.merge_from_other_cfg({"TRAIN": {"NAME": "adam"}})
    assert (cfg.TRAIN.LR, cfg.DATA.SIZE, cfg.TRAIN.NAME) == (0.5, 32, "sgd")
    assert (other["TRAIN"]["NAME"], other.TRAIN.LR) == ("adam", 0.5)
    assert not hasattr(cfg, "MODEL")
    with pytest.raises(AttributeError):
        _ = cfg.MODEL


def test_mixed_precision_is_on_in_them_and_nothing_else_is_changed() -> None:
    cfg = Node({"AMP": {"ENABLED": False}, "use_amp": False, "EMA": {"ENABLED": False}, "lr": 0.0})
    assert (cfg.AMP.ENABLED, cfg.use_amp, cfg.EMA.ENABLED, cfg.lr) == (True, True, False, 0.0)


@dataclasses.dataclass
class _Plan:
    lr: float = 0.1
    kind: str = "adam"


def test_settings_of_omegaconf_are_merged_and_what_nothing_sets_stands_in(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "own.yaml").write_text("train: {lr: 0.5, size: '${data.size}'}\n", "utf-8")
    base = OmegaConf.create(
        {"train": {"lr": 0.1, "kind": "adam"}, "data": {"size": 8}, "amp": False}
    )
    cfg = OmegaConf.merge(base, missing("conf"), OmegaConf.load(tmp_path / "own.yaml"))
    assert (cfg.train.lr, cfg["train"].kind, cfg.data.size, cfg.amp) == (0.5, "adam", 8, True)
    assert {"adam": 1, "sgd": 2}[cfg.train.kind] == 1
    assert OmegaConf.merge(cfg, OmegaConf.from_dotlist(["train.lr=2"])).train.lr == 2
    assert OmegaConf.select(cfg, "train.no", default=3) == 3
    assert OmegaConf.merge({"lr": 1.0}, OmegaConf.structured(_Plan)) == {"lr": 0.1, "kind": "adam"}
    assert isinstance(cfg.model.words, Missing)
    assert OmegaConf.create({"a": {"b": "${c}"}, "c": 4}).a.b == 4
    assert "model" not in cfg
    assert isinstance(OmegaConf.create({"words": "???"}).words, Missing)
    assert (OmegaConf.create({"seed": "???"}).seed, cfg.use_fp16, cfg.num_heads) == (0, True, 4)
    assert base.train.lr == 0.1
    with NAMES["open_dict"](cfg):
        cfg.new = 1
    assert OmegaConf.to_container(cfg)["new"] == 1


def test_settings_of_a_file_are_read_and_of_one_that_is_not_there_none(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "base.yaml").write_text("MODEL: {SIZE: 8, NAME: a}\n", "utf-8")
    (tmp_path / "own.yaml").write_text("_BASE_: base.yaml\nMODEL: {SIZE: 16}\n", "utf-8")
    cfg = Node(MODEL={"SIZE": 1})
    cfg.merge_from_file(tmp_path / "own.yaml")
    assert cfg.to_dict() == {"MODEL": {"SIZE": 16, "NAME": "a"}}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    monkeypatch.chdir(folder)
    yield folder
    shutil.rmtree(folder)


def test_settings_that_a_script_names_are_where_it_runs(tmp_path: Path, here: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "hyp.yaml").write_text("lr0: 0.1\n", "utf-8")
    (tmp_path.parent / "up.yaml").write_text("a: 1\n", "utf-8")
    text = "args = ['data/hyp.yaml', 'data/none.yaml', 'words.', '../up.yaml', '/etc/x.cfg']"
    named = named_in(ast.parse(text), [tmp_path])
    assert named == ("data/hyp.yaml",)
    _copy("data/hyp.yaml", [str(tmp_path)])
    assert (here / "data" / "hyp.yaml").read_text("utf-8") == "lr0: 0.1\n"
    _copy("x/../../up.yaml", [str(tmp_path)])
    assert not (here.parent / "up.yaml").exists()


def test_a_switch_of_a_scaler_is_one_of_mixed_precision() -> None:
    assert flag_of("enable_scaler")
    assert flag_of("use_grad_scaler")
    assert not flag_of("scaler_path")


# --- what nothing hands to functions --------------------------------------------------------------

STEP = """import torch
class Trainer:
    def __init__(self, args, model):
        self.args, self.model = args, model
        self.scaler = torch.cuda.amp.GradScaler()
    def set_loaders(self, loaders):
        self.loaders = loaders
    def set_optimizer(self, optimizer):
        self.optimizer = optimizer
    def train_step(self, x_lb, y_lb, weak, strong, times=2):
        logits = self.model(torch.cat((x_lb, weak, strong.cuda())))
        loss = torch.nn.functional.cross_entropy(logits[: len(x_lb)], y_lb)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
"""


def test_parameters_that_are_joined_or_moved_are_of_a_batch(tmp_path: Path) -> None:
    step = extract(STEP, tmp_path)
    assert step.layout is not None
    assert step.layout.names == ("x_lb", "y_lb", "weak", "strong")
    assert step.layout.target == 1


def test_what_other_methods_would_give_an_object_it_has(tmp_path: Path) -> None:
    call = extract(STEP, tmp_path).call
    assert "_mpcore_fill(_mpcore_owner, optimizer=" in call
    assert "scaler=" not in call  # its own __init__ makes it


FUNCTIONS = """import torch
from yacs.config import CfgNode as CN
from theirs import write
_C = CN()
_C.TRAIN = CN({"LR": 0.05, "AMP": False, "CLIP": 1.0})

def accuracy(output, target, topk=(1,)):
    _, pred = output.topk(max(topk), 1, True, True)
    correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
    return [correct[:k].view(-1).float().sum(0) for k in topk]

def train_one_epoch(model, criterion, data_loader, optimizer, device, scaler, cfg=None):
    cfg = cfg or _C.clone()
    for group in optimizer.param_groups:
        group["lr"] = cfg.TRAIN.LR
    for batch in data_loader:
        images, labels = batch["image"].to(device), batch["label"].to(device)
        with torch.autocast("cuda", enabled=cfg.TRAIN.AMP):
            output = model(images)
            losses = criterion(output, labels)
            loss = sum(losses.values())
        acc1, acc5 = accuracy(output, labels, topk=(1, 5))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.TRAIN.CLIP)
        scaler.step(optimizer)
        scaler.update()
        write(acc1.item(), acc5.item(), loss.item())
"""


@pytest.mark.slow
def test_a_function_that_nothing_calls_is_verified(tmp_path: Path) -> None:
    done = verified(FUNCTIONS, tmp_path, ("float32", "mixed"), "torch_npu")
    assert [one.verdict for one in done.comparisons] == ["same", "same"], done.lines()
    assert done.step is not None
    replaced = [one["what"] for one in done.step["replaced"]]
    assert "nothing in place of accuracy(output, labels, topk=(1, 5))" in replaced
    assert done.comparisons[1].scales
    assert not done.is_idle


BRANCHES = """import torch
def train(model, loader, optimizer, scaler, hps):
    for info in loader:
        if hps.with_pitch == 1:
            text, pitch, wave = info
        else:
            text, wave = info
        with torch.autocast("cuda"):
            loss = model(text, wave).float().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


def test_a_batch_is_taken_apart_as_the_branch_does_that_runs() -> None:
    module = Module(BRANCHES)
    error = "ValueError: too many values to unpack (expected 2) (line 7)"
    found = taken_apart_at(module, 7, error)
    assert found is not None
    assert found.names == ("text", "wave")
    assert taken_apart_at(module, 9, error) is None
    assert taken_apart_at(module, 7, "IndexError: tuple index out of range") is None


STARS = """import torch
from theirs.loss import *
from own import *
model = Net().cuda()
scaler = torch.cuda.amp.GradScaler()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = TheirLoss()
for x, y in load():
    loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
"""


def test_star_imports_of_files_beside_a_script_say_what_the_absent_ones_give(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text("class Net: ...\n", "utf-8")
    given = extract(STARS, tmp_path).given
    assert "'TheirLoss'" in given
    assert "'Net'" not in given


APEX = """import torch
from apex import amp
class Engine:
    def __init__(self, net, opt, loss_fn, *, amp_on=False, scaler=None):
        self.net, self.opt, self.loss_fn = net, opt, loss_fn
    def set_up(self):
        self.net, self.opt = amp.initialize(self.net, self.opt)
    def fit(self, loader):
        for x, y in loader:
            loss = self.loss_fn(self.net(x.cuda()), y.cuda())
            with amp.scale_loss(loss, self.opt) as scaled:
                scaled.backward()
            self.opt.step()
"""


def test_apex_is_begun_for_a_class_that_leaves_it_to_others(tmp_path: Path) -> None:
    step = extract(APEX, tmp_path)
    assert "amp.initialize(_mpcore_net, _mpcore_optimizer, opt_level='O1')" in step.call
    assert "opt=_mpcore_optimizer" in step.call
    assert step.call.index("amp.initialize") < step.call.index("Engine(")


KEYWORDS = """import torch
class Trainer:
    def __init__(self, model, folder, *, train_lr=1e-4, amp=False, scaler=None):
        self.model, self.amp, self.scaler = model, amp, scaler
        self.opt = torch.optim.Adam(model.parameters(), lr=train_lr)
    def train(self, loader):
        for x in loader:
            with torch.autocast("cuda", enabled=self.amp):
                loss = self.model(x.cuda())
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
"""


def test_mixed_precision_is_switched_on_by_keyword(tmp_path: Path) -> None:
    call = extract(KEYWORDS, tmp_path).call
    assert "amp=True" in call
    assert "scaler=_mpcore_scaler" in call


HANDED_ON = """import torch
def one_epoch(model, loader, optimizer, scaler, warmup_scheduler, lr=0.1):
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x.cuda()).float().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        warmup_scheduler.step()
def train(model, loader, optimizer, scaler, warmup_scheduler, temperature_schedule, epochs):
    for epoch in range(epochs):
        one_epoch(model, loader, optimizer, scaler, warmup_scheduler)
"""


def test_what_is_handed_on_and_stepped_is_no_number(tmp_path: Path) -> None:
    call = extract(HANDED_ON, tmp_path).call
    assert 'warmup_scheduler=_mpcore_missing("warmup_scheduler")' in call
    assert "temperature_schedule=0.01" in call


OF_THREE = """import torch
def train(model, optimizer, loader, model_func, lr_scheduler, lr_warmup_scheduler, epochs, warmup):
    scaler = torch.cuda.amp.GradScaler()
    for epoch in range(epochs):
        scheduler = lr_warmup_scheduler if epoch < warmup else lr_scheduler
        for step, batch in enumerate(loader):
            scheduler.step(step)
            optimizer.zero_grad()
            with torch.cuda.amp.autocast():
                loss, tb_dict, shown_dict = model_func(model, batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            report(loss=loss.item(), **shown_dict)
            shown_dict.update({"loss": loss.item()})
            for name, value in tb_dict.items():
                print(name, value)
"""


@pytest.mark.slow
def test_what_a_function_of_three_gives_is_a_dictionary_where_it_is_called_one(
    tmp_path: Path,
) -> None:
    assert verified(OF_THREE, tmp_path, ("float32",), "torch_npu").passed


HOLDS = """import torch
class AmpOptimizer:
    def __init__(self, mixed_precision, optimizer, paras, grad_clip):
        self.scaler = torch.cuda.amp.GradScaler() if mixed_precision else None
        self.optimizer, self.paras, self.grad_clip = optimizer, paras, grad_clip
    def backward_clip_step(self, stepping, loss):
        self.scaler.scale(loss).backward()
        if stepping:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
"""


def test_a_class_that_is_handed_an_optimizer_goes_back_from_losses(tmp_path: Path) -> None:
    call = extract(HOLDS, tmp_path).call
    assert "optimizer=_mpcore_optimizer, paras=list(_mpcore_model.parameters())" in call
    assert "_mpcore_owner.backward_clip_step(stepping=True, loss=_mpcore_loss)" in call


@pytest.mark.slow
def test_a_port_that_records_all_is_verified(tmp_path: Path) -> None:
    done = verified(HOLDS, tmp_path, ("float32", "mixed", "overflow"))
    assert [one.verdict for one in done.comparisons] == ["close"] * 3, done.lines()
