"""Steps verified without help: what switches mixed precision on, set-ups of several, and others."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target
from mpcore_port.verify.absent import _be_alone
from mpcore_port.verify.bases import child_that_gives
from mpcore_port.verify.extract import extract
from mpcore_port.verify.judge import Verification
from mpcore_port.verify.module import Module
from mpcore_port.verify.old_torch import has_whole_betas
from mpcore_port.verify.project import _is_apart, _is_unused
from mpcore_port.verify.required import required_arguments
from mpcore_port.verify.switched_on import asked_devices, switches

from .ports import verified

if TYPE_CHECKING:
    from mpcore_port.engine import Ported

MODES = ("float32", "mixed")


def _same(done: Verification) -> bool:
    return [one.verdict for one in done.comparisons] == ["same"] * len(done.comparisons) != []


SET_UP = """import torch
from theirs import set_up, tokens, Loader
def main(cfg):
    model, plain, optimizer, scheduler, scaler, \\
        tokenizer, start_epoch, seen = set_up(
            cfg, found=True)
    for epoch in range(start_epoch, cfg.epochs):
        for x, y in Loader(cfg):
            with torch.cuda.amp.autocast():
                loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            print(float(plain.temperature.item()))
"""


def test_what_sets_training_up_gives_an_optimizer_a_scaler_and_where_to_begin(
    tmp_path: Path,
) -> None:
    done = verified(SET_UP, tmp_path, MODES, "torch_npu")
    assert _same(done)
    assert not done.is_idle
    assert done.step is not None
    assert not done.step["without_forward"]


SWITCHED_OFF = """import argparse
import torch
half = "off" == "on"
model = torch.nn.Linear(16, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler(enabled=half)
for x, y in torch.utils.data.DataLoader(open("data")):
    with torch.cuda.amp.autocast(enabled=half):
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_mixed_precision_that_is_off_is_compared_switched_on(tmp_path: Path) -> None:
    done = verified(SWITCHED_OFF, tmp_path, MODES, "torch_npu")
    assert _same(done)
    assert not done.is_idle
    assert done.step is not None
    assert any("mixed precision is on" in one for one in done.step["assumed"])


def _names(found: dict[ast.AST, str]) -> dict[str, str]:
    return {ast.unparse(node): text for node, text in found.items()}


def test_switches_are_flags_and_questions_in_front_of_scalers() -> None:
    found = switches(
        Module(
            "import torch\n"
            "from torch.cuda.amp import GradScaler, autocast\n"
            "scaler = GradScaler(enabled=hps.half_run)\n"
            "if kind == 'half':\n    other = GradScaler()\n"
            "if scaler is not None:\n    with autocast():\n        pass\n"
            "with autocast(enabled=False):\n    pass\n"
        )
    )
    assert _names(found) == {"hps.half_run": "_mpcore_always", "kind == 'half'": "_mpcore_always"}


def test_a_question_for_the_kind_of_device_is_answered_as_on_the_device() -> None:
    found = asked_devices(
        Module(
            "a = self.device.type == 'cuda'\nb = device.type != 'cuda'\n"
            "c = shape.type == 'cuda'\nd = device.type == 'cpu'\n"
        )
    )
    assert _names(found) == {
        "self.device.type == 'cuda'": "_mpcore_always",
        "device.type != 'cuda'": "_mpcore_never",
    }


OPTIONS = """import torch
class Trainer:
    def __init__(self, path=None, **params):
        self.begin(**params)
    def begin(self, **params):
        self.on = params.get("cuda", False)
        self.amp = params.get("amp", False)
        self.device = torch.device("cuda:0" if torch.cuda.is_available() and self.on else "cpu")
        is_on = self.device.type == "cuda" and self.amp == True
        self.scaler = torch.cuda.amp.GradScaler() if is_on else None
    def fit(self, model, loader, loss_func):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            given = {"x": x.to(self.device)}
            if self.scaler and self.device.type == "cuda":
                with torch.cuda.amp.autocast():
                    out = model(**given)
                    loss = loss_func(out, y.to(self.device))
                self.scaler.scale(loss).backward()
                self.scaler.step(optimizer)
                self.scaler.update()
            else:
                out = model(**given)
                loss = loss_func(out, y.to(self.device))
                loss.backward()
                optimizer.step()
            optimizer.zero_grad()
"""


def test_flags_of_keywords_that_are_handed_on_are_on(tmp_path: Path) -> None:
    done = verified(OPTIONS, tmp_path, MODES, "torch_npu")
    assert _same(done)
    assert not done.is_idle
    assert done.step is not None
    assert not done.step["without_forward"]


BETAS = """import torch
model = torch.nn.Linear(16, 10).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0, 0.9))
for x, y in torch.utils.data.DataLoader(open("data")):
    loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_whole_betas_are_taken_as_torch_took_them(tmp_path: Path) -> None:
    done = verified(BETAS, tmp_path, ("float32",), "torch_npu")
    assert _same(done)
    assert done.step is not None
    assert any("betas may be whole numbers" in one for one in done.step["assumed"])
    assert not has_whole_betas(Module("Adam(p, betas=(0.5, 0.9))"))


INSIDE = """import torch
from train import tools
model = torch.nn.Linear(tools.WIDTH, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in torch.utils.data.DataLoader(open("data")):
    loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_script_may_lie_in_a_folder_of_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "tools.py").write_text("WIDTH = 16\n", encoding="utf-8")
    done = verified(INSIDE, tmp_path, ("float32",), "torch_npu")
    assert _same(done)


NUMBERS = """import torch
from types import SimpleNamespace
from theirs import settings, read
from mine import make
hps = SimpleNamespace(**{"rate": 0.1})
shares = torch.tensor(settings["shares"])
both = torch.as_tensor([settings["one"], 2.0])
model = make().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=hps.rate, momentum=hps.momentum)
scaler = torch.cuda.amp.GradScaler()
for x, y in read(hps.counter):
    with torch.autocast(device_type=model.device_kind):
        loss = torch.nn.functional.mse_loss(model(x.cuda()), y.cuda()) * both.sum().cuda()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_numbers_and_kinds_of_devices_may_be_absent(tmp_path: Path) -> None:
    done = verified(NUMBERS, tmp_path, MODES, "torch_npu")
    assert _same(done)
    assert done.step is not None
    assert not done.step["without_forward"]


PARENT = """class Trainer:
    def __init__(self):
        for name in self.NAMES:
            self.begin(name)
class Other(Trainer):
    pass
class Single(Trainer):
    def __init__(self):
        self.NAMES = ["net"]
        super().__init__()
"""


@pytest.mark.parametrize(("name", "child"), [("Trainer", "Single"), ("Single", None)])
def test_a_class_that_others_complete_is_made_as_one_of_them(name: str, child: str | None) -> None:
    module = Module(PARENT)
    found = child_that_gives(module, module.classes[name])
    assert (found.name if found is not None else None) == child


def test_settings_of_tools_are_not_those_of_a_script(tmp_path: Path) -> None:
    (tmp_path / ".pre-commit-config.yaml").write_text("repos: []\n", encoding="utf-8")
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--config', type=str)\n"
    assert "--config" not in required_arguments(Module(text), tmp_path)


def test_a_step_with_everything_off_says_nothing_of_it(tmp_path: Path) -> None:
    step = extract(SWITCHED_OFF, tmp_path)
    assert not step.mixed
    assert not any("mixed precision is on" in one for one in step.assumed)


COMPUTED = """import argparse
p = argparse.ArgumentParser()
p.add_argument("--seq-len", type=int, default=None)
p.add_argument("--lr", type=float, default=None)
p.add_argument("--seed", type=int, default=None)
args = p.parse_args()
if args.lr is None:
    args.lr = 0.1
print(args.seq_len * 8, args.lr * 2)
"""


def test_an_option_without_a_value_has_one_where_it_is_computed_with(tmp_path: Path) -> None:
    found = required_arguments(Module(COMPUTED), tmp_path)
    assert found == ("--seq-len", "32")


ENDS = """import torch
from theirs import done
model = torch.nn.Linear(16, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
for step in range(done.first, done.first):
    with torch.cuda.amp.autocast():
        loss = model(torch.randn(8, 16, device="cuda")).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_a_step_that_ends_without_a_loss_is_none_that_was_found(tmp_path: Path) -> None:
    done = verified(ENDS, tmp_path, MODES, "torch_npu")
    assert "ended without a backward pass" in done.why_not


PREFETCHED = """import torch
from theirs import pieces
def batches():
    for one in pieces("data"):
        yield one.pin_memory(), one[1:]
model = torch.nn.Linear(16, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = batches()
x, y = next(train_loader)
for step in range(100):
    loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    loss.backward()
    x, y = next(train_loader)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_first_batch_may_be_taken_in_front_of_the_loop(tmp_path: Path) -> None:
    done = verified(PREFETCHED, tmp_path, ("float32",), "torch_npu")
    assert _same(done)
    assert done.step is not None
    assert not done.step["without_forward"]


EVALUATED = """import torch
model = torch.nn.Linear(16, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def test(batches):
    with torch.cuda.amp.autocast():
        return [model(x.cuda()) for x, y in batches]
def train(batches):
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
train(torch.utils.data.DataLoader(open("data")))
print(test(torch.utils.data.DataLoader(open("data"))))
"""


def _ported(text: str, folder: Path) -> Ported:
    (folder / "train.py").write_text(text, encoding="utf-8")
    target = load_target("torch_npu")
    return port_tree(walk(folder / "train.py"), target, Options()).files[0]


@pytest.mark.parametrize(
    ("text", "mixed", "is_apart"),
    [
        (EVALUATED, False, True),
        (EVALUATED, True, False),
        (EVALUATED.replace("        loss.b", "        GradScaler()\n        loss.b"), False, False),
    ],
)
def test_mixed_precision_of_evaluation_alone_is_not_off(
    tmp_path: Path, text: str, mixed: bool, is_apart: bool
) -> None:
    text = text.replace("import torch\n", "import torch\nfrom torch.cuda.amp import GradScaler\n")
    done = Verification("train.py", "torch_npu", (), "", step={"mixed": mixed})
    assert _is_apart(done, _ported(text, tmp_path)) is is_apart


UNUSED = """import torch
from torch import nn
scaler = torch.cuda.amp.GradScaler()
def train(net, loader, optimizer):
    for x, y in loader:
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_a_scaler_that_scales_nothing_is_no_mixed_precision(tmp_path: Path) -> None:
    assert _is_unused(_ported(UNUSED, tmp_path))
    assert not _is_unused(_ported(UNUSED.replace("loss.back", "scaler.scale(loss).back"), tmp_path))
    region = UNUSED + "def test(net, x):\n    with torch.autocast('cuda'):\n        return net(x)\n"
    assert not _is_unused(_ported(region, tmp_path))


def test_one_process_talks_with_itself_where_nothing_has_begun() -> None:
    said: list[str] = []

    def talk(*_: object, **__: object) -> None:
        said.append("talked")

    names = ("all_gather", "all_gather_object", "all_reduce", "get_rank", "get_world_size")
    begun = [False]
    group = SimpleNamespace(
        **dict.fromkeys(names, talk), is_initialized=lambda: begun[0], barrier=None
    )
    _be_alone(group)
    held, whole = [torch.zeros(2)], [None]
    assert group.all_gather(held, torch.ones(2, requires_grad=True) * 3) is None
    group.all_gather_object(whole, obj={"a": 1})
    assert held[0].tolist() == [3, 3]
    assert not held[0].requires_grad
    assert whole == [{"a": 1}]
    assert group.all_reduce(held[0], async_op=True).wait()
    assert (group.get_rank(), group.get_world_size(), said) == (0, 1, [])
    begun[0] = True
    group.all_reduce(held[0])
    assert said == ["talked"]


TALKS = """import torch
import torch.distributed as dist
from torch import nn
def train_one_epoch(model, criterion, data_loader, optimizer, device):
    for samples, targets in data_loader:
        samples = samples.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        loss = criterion(model(samples), targets)
        losses = [torch.zeros_like(loss) for _ in range(dist.get_world_size())]
        dist.all_gather(losses, loss)
        losses = torch.tensor(losses)
        if torch.isnan(losses).any():
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_losses_that_processes_gather_are_put_together(tmp_path: Path) -> None:
    assert _same(verified(TALKS, tmp_path, ("float32",), "torch_npu"))


OF_APEX = """import os
import torch
from apex import amp
from mpcore_port.verify import absent, checkpoints
from mpcore_port.verify.stand_in import StandIn
from mpcore_port.verify.synthetic import Missing
absent.install()
checkpoints.install(lambda: False)
assert isinstance(torch.load(os.devnull), Missing)
assert isinstance(torch.load(StandIn("path")), Missing)
own, there = torch.nn.Linear(2, 2), StandIn("net")
adam = torch.optim.Adam(own.parameters())
nets, _ = amp.initialize([there, own], adam, opt_level="O1", verbosity=0)
assert all(isinstance(net, torch.nn.Module) for net in nets)
assert nets[1] is own
"""


def test_apex_prepares_networks_that_are_not_there(tmp_path: Path) -> None:
    script = tmp_path / "held.py"  # in a process of its own: torch takes stand-ins from then on
    script.write_text(OF_APEX, encoding="utf-8")
    where = find_spec("mpcore_port")
    assert where is not None
    assert where.origin is not None
    stubs = Path(where.origin).parent / "stubs" / "path"
    path = os.pathsep.join([str(stubs), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
