"""Scripts whose steps are not called with all that they ask for: what is taken to be there."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from mpcore_port.verify.guess import _is_read_untested

from .ports import verified

if TYPE_CHECKING:
    from pathlib import Path

    from mpcore_port.verify.judge import Verification

MODES = ("float32", "mixed")


def _is_whole(done: Verification) -> bool:
    """Return whether both modes are the same, with the step's forward pass."""
    whole = done.step is not None and not done.step.get("without_forward")
    return whole and {one.verdict for one in done.comparisons} == {"same"}


TWO_BARS = """import torch
from fastprogress import master_bar, progress_bar
from theirs import pieces
model = torch.nn.Linear(16, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
loader = torch.utils.data.DataLoader(pieces("data"), batch_size=8)
outer = master_bar(range(2))
for epoch in outer:
    outer.write(f"epoch {epoch}")
    inner = progress_bar(enumerate(loader), total=len(loader), parent=outer)
    for step, (x, y) in inner:
        with torch.cuda.amp.autocast():
            loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        outer.child.comment = f"{loss.item():.2f}"
"""


def test_a_bar_of_bars_gives_what_it_goes_over(tmp_path: Path) -> None:
    assert _is_whole(verified(TWO_BARS, tmp_path, MODES, "torch_npu"))


HELD = """import torch
def train(rank, model, opt, d_opt, criterion, train_loader, logger=None):
    log = print if logger is None else logger.log
    if rank == 0:
        folder = logger.logdir
    scaler = torch.cuda.amp.GradScaler()
    for step, (x, y) in enumerate(train_loader):
        with torch.cuda.amp.autocast():
            loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        model.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step > 1000:
            torch.save([opt.state_dict(), d_opt.state_dict()], folder + "opt.pth")
            log(step)
"""


def test_what_is_asked_without_a_test_was_given(tmp_path: Path) -> None:
    done = verified(HELD, tmp_path, MODES, "torch_npu")
    assert _is_whole(done)


@pytest.mark.parametrize(
    ("line", "is_given"),
    [
        ("log.write(1)", True),
        ("if rank == 0: log.write(1)", True),
        ("if log is not None: log.write(1)", False),
        ("log and log.write(1)", False),
        ("print(log.name if log else 0)", False),
        ("log = log or rank; log.write(1)", False),
    ],
)
def test_what_is_asked_after_a_test_may_be_nothing(line: str, is_given: bool) -> None:
    tests = "    print(1 if log is None else 2)\n"
    function = ast.parse(f"def train(rank, log=None):\n{tests}    {line}\n").body[0]
    assert isinstance(function, ast.FunctionDef)
    assert _is_read_untested("log", function) is is_given


JOINED = """import numpy as np
import torch
from theirs import pieces
dataset, loader = pieces("data")
labels = np.concatenate(dataset.labels, 0)
assert labels[:, 0].max() < 10
counts = torch.bincount(torch.tensor(labels[:, 0]).long(), minlength=10)
boxes = torch.from_numpy(labels[:, 1:5])
model = torch.nn.Linear(16, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
for x, y in torch.utils.data.DataLoader(dataset, batch_size=8):
    with torch.cuda.amp.autocast():
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda(), counts.float().cuda())
    loss = loss + boxes.mean().cuda()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_numpy_joins_what_is_not_there(tmp_path: Path) -> None:
    text = JOINED.replace("counts.float()", "(1 + counts.float())")
    done = verified(text, tmp_path, MODES, "torch_npu")
    assert _is_whole(done)
    assert done.step is not None


WARMED_UP = """import torch
from torch.optim import lr_scheduler
def train(loader, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    factor = lambda epoch: 1 - epoch / 10
    scheduler = lr_scheduler.LambdaLR(optimizer, lr_lambda=factor)
    scaler = torch.cuda.amp.GradScaler()
    for epoch in range(2):
        for step, (x, y) in enumerate(loader):
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * min(1, (step + 1) / 10)
            with torch.cuda.amp.autocast():
                loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
train(torch.utils.data.DataLoader(open("data")), torch.nn.Linear(16, 10).cuda())
"""


def test_what_a_schedule_gives_an_optimizer_is_there(tmp_path: Path) -> None:
    assert _is_whole(verified(WARMED_UP, tmp_path, MODES, "torch_npu"))


ABSTRACT = """from abc import ABC, abstractmethod
import torch
class Base(ABC):
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.cuda.amp.GradScaler()
        self.load_task()
    @abstractmethod
    def load_task(self):
        pass
    @abstractmethod
    def compute_loss(self, out, y):
        pass
    def train(self):
        for x, y in self.loader:
            with torch.cuda.amp.autocast():
                loss = self.compute_loss(self.model(x.cuda()), y.cuda())
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""


def test_an_abstract_class_is_made_with_stand_ins(tmp_path: Path) -> None:
    assert _is_whole(verified(ABSTRACT, tmp_path, MODES, "torch_npu"))
