"""Steps without their forward pass: what trains by a loss runs where no batch is found for it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import _verified
from mpcore_port.verify.along import _data_beside
from mpcore_port.verify.extract import extract
from mpcore_port.verify.module import Module
from mpcore_port.verify.required import required_arguments

from .ports import verified

if TYPE_CHECKING:
    from pathlib import Path

TRAINER = """import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast
import odd
class Trainer:
    def __init__(self, model, optimizer, loader):
        self.model = model
        self.optimizer = optimizer
        self.loader = loader
        self.scaler = GradScaler()
        self.meter = odd.Meter()
    def train_epoch(self):
        self.model.train()
        for step, batch in enumerate(self.loader):
            graphs = batch.rows[0].split(" ")[3]["x"] + 1
            with autocast():
                odd.keep(nn.functional.mse_loss(graphs.x, graphs.y))
                out = self.model(torch.stack([graphs.x, graphs.y]).view(3, 5, 7))
                terms = {k: v.mean() for k, v in out.items()}
                loss = sum(terms.values()) / len(graphs.rows)
            self.scaler.scale(loss).backward()
            if (step + 1) % 2 == 0:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
            self.meter.update(loss.item(), len(graphs.rows))
"""

METHODS = """import torch
class Pix:
    def __init__(self, net):
        self.net_g = net
        self.optimizer = torch.optim.Adam(self.net_g.parameters())
    def set_input(self, data):
        self.real = data["A"].to(self.device)
    def forward(self):
        self.fake = self.net_g(self.real)
    def backward_g(self):
        self.loss = self.criterion(self.fake, self.real) + self.gan(self.fake) * 10
        self.loss.backward()
    def optimize_parameters(self):
        self.forward()
        self.optimizer.zero_grad()
        self.backward_g()
        self.optimizer.step()
"""

FUNCTION = """import torch
def train(model, loader, optimizer, scaler, criterion, args):
    total = 0
    for images, labels in loader:
        size = images.size(0)
        if args.mix:
            images, labels = args.mix(images, labels)
        for view in images.chunk(2):
            outputs = model(view)
        if outputs.shape[0] > 3:
            loss = criterion(outputs, labels)
        else:
            loss = criterion(outputs, labels) * 2
        loss = loss / args.accumulate
        scaler(loss, optimizer, parameters=model.parameters())
        total += loss.item() * size
        if size == 3:
            break
        print(total)
    return total
"""


ACCUMULATES = """import torch
class Trainer:
    def __init__(self, model, loader, every):
        self.model, self.loader, self.every = model, loader, every
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.steps = 0
    def train_step(self, batches):
        for _ in range(self.every):
            data, *_ = next(batches)
            loss, parts = self.model(data, parts=True)
            (loss / self.every).backward()
        self.log(parts.first.item())
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
    def train(self):
        batches = iter(self.loader)
        while self.steps < 100:
            self.train_step(batches)
"""


def _left(text: str, folder: Path) -> str:
    (folder / "t.py").write_text(text, encoding="utf-8")
    step = extract(text, folder, forward=False)
    ast.parse(step.body)
    return "\n".join(line for line in step.body.splitlines() if line.strip())


def test_a_class_of_methods_keeps_its_step_and_no_forward_pass(tmp_path: Path) -> None:
    left = _left(METHODS, tmp_path)
    assert "self.loss = _mpcore_missing('loss of weights')(self.net_g, _mpcore_some())" in left
    assert "self.loss.backward()" in left
    assert "self.optimizer.step()" in left
    assert "if _mpcore_never: self.forward()" in left
    assert """if _mpcore_never: self.real = data["A"]""" in left


def test_what_hangs_on_a_batch_goes(tmp_path: Path) -> None:
    left = _left(FUNCTION, tmp_path)
    assert left.count("_mpcore_missing('loss of weights')(model, _mpcore_some())") == 2
    assert "if _mpcore_always:" in left  # which branch there was, a batch said
    assert "loss = loss / args.accumulate" in left
    assert "scaler(loss, optimizer, parameters=model.parameters())" in left
    assert "if _mpcore_never: size = images.size(0)" in left
    assert "for view in _mpcore_none:" in left
    assert "if _mpcore_never:\n            break" in left


def test_a_loop_that_accumulates_is_no_training_loop_where_what_steps_stands_behind_it(
    tmp_path: Path,
) -> None:
    left = _left(ACCUMULATES, tmp_path)
    assert "self.optimizer.step()" in left
    assert "while self.steps < 100:" in left


def test_a_step_is_verified_where_no_batch_is_found(tmp_path: Path) -> None:
    done = verified(TRAINER, tmp_path, ("float32", "overflow"), "torch_npu")
    assert done.passed, done.lines()
    assert done.step is not None
    assert done.step["without_forward"]
    assert done.comparisons[1].original_scales[-1] == 32768.0
    assert "forward pass was not run" in _verified(done.to_dict())
    assert any("inputs for rows were not found" in line for line in done.lines())
    assert not done.step["losses"]


@pytest.mark.slow
def test_the_same_for_mindspore(tmp_path: Path) -> None:
    done = verified(TRAINER, tmp_path, ("float32", "overflow"))
    assert done.passed, done.lines()
    assert done.step is not None
    assert done.step["without_forward"]


FAULTS = {
    "the clip is another": ("parameters(), 1.0)", "parameters(), 1e-4)", "float32"),
    "not unscaled": ("self.scaler.unscale_(self.optimizer)", "pass", "overflow"),
    "gradients stay": ("self.optimizer.zero_grad()", "pass", "float32"),
    "steps seldom": ("(step + 1) % 2 == 0", "(step + 1) % 3 == 0", "float32"),
    "around the scaler": ("scaler.step(self.optimizer)", "optimizer.step()", "overflow"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_a_port_changes_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A port whose step is another is different without a forward pass, too."""
    from mpcore_port.verify import step as steps

    was, is_now, mode = FAULTS[fault]
    whole = steps._port

    def broken(*args: object) -> object:
        facts, text = whole(*args)  # type: ignore[arg-type]
        assert was in text
        return facts, text.replace(was, is_now)

    monkeypatch.setattr(steps, "_port", broken)
    done = verified(TRAINER, tmp_path, (mode,), "torch_npu", losses=20)
    assert not done.passed
    assert done.comparisons[0].verdict == "different"


PRECISION = """import torch
from options import get_args
args = get_args()
scaler = torch.cuda.amp.GradScaler() if args.precision == "amp" else None
"""
OPTIONS = """import argparse
def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=["amp", "fp32"], default="fp32")
    parser.add_argument("--output", required=True)
    return parser.parse_args()
"""


def test_the_word_that_switches_mixed_precision_on(tmp_path: Path) -> None:
    (tmp_path / "options.py").write_text(OPTIONS, encoding="utf-8")
    found = required_arguments(Module(PRECISION), tmp_path)
    assert found == ("--output", "mpcore", "--precision", "amp")
    on = OPTIONS.replace('default="fp32"', 'default="amp"')
    (tmp_path / "options.py").write_text(on, encoding="utf-8")
    assert required_arguments(Module(PRECISION), tmp_path) == ("--output", "mpcore")


def test_the_rest_of_a_batch_that_nobody_reads_is_nothing(tmp_path: Path) -> None:
    text = FUNCTION.replace("for images, labels in", "for images, *_ in").replace(
        "labels", "images"
    )
    (tmp_path / "t.py").write_text(text, encoding="utf-8")
    step = extract(text, tmp_path)
    assert step.layout is not None
    assert step.layout.names == ("images",)


def test_data_beside_a_module_goes_along(tmp_path: Path) -> None:
    module, table = tmp_path / "words.py", tmp_path / "words.txt"
    module.write_text("x = 1", encoding="utf-8")
    table.write_text("a b", encoding="utf-8")
    (tmp_path / "large.bin").write_bytes(bytes(4_000_001))
    (tmp_path / "more").mkdir()
    (tmp_path / "data").mkdir()
    inner = tmp_path / "data" / "more.txt"
    inner.write_text("c d", encoding="utf-8")
    assert _data_beside([module]) == [table, inner]


def test_all_modules_beside_a_script_are_followed(tmp_path: Path) -> None:
    from mpcore_port.verify.beside import needed

    count = 100
    for place in range(count):
        last = place == count - 1
        text = "x = 1" if last else f"from m{place + 1} import x"
        (tmp_path / f"m{place}.py").write_text(text, encoding="utf-8")
    assert len(needed("from m0 import x", tmp_path, [])) == count


def test_more_modules_than_are_followed_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpcore_port.verify import beside
    from mpcore_port.verify.module import StepError

    monkeypatch.setattr(beside, "_MOST", 1)
    for name in "ab":
        (tmp_path / f"{name}.py").write_text("x = 1", encoding="utf-8")
    with pytest.raises(StepError, match="more than 1 modules that lie beside it"):
        beside.needed("import a, b", tmp_path, [])
