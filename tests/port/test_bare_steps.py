"""Steps that run without what their scripts import, where nothing else ran."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import _verified, port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target
from mpcore_port.verify import step as steps
from mpcore_port.verify.extract import extract
from mpcore_port.verify.judge import VerifyOptions
from mpcore_port.verify.left_out import may_go, types_asked
from mpcore_port.verify.module import Module, StepError, children
from mpcore_port.verify.module import walk as below

if TYPE_CHECKING:
    from pathlib import Path

    from mpcore_port.verify.judge import Verification

TRAINER = """import os
import numpy as np
import pytest
import torch
from torch.utils.tensorboard import SummaryWriter
from beside import make_model, make_optimizer
from .parts import Meter
TYPES = dict(float16=torch.float16, bfloat16=torch.bfloat16)
class Trainer:
    def __init__(self, cfg, loader):
        self.cfg, self.loader = cfg, loader
        self.model = self.build_model()
        self.optimizer = self.build_optimizer()
        self.rates = np.concatenate([Meter(cfg).rates])[:, 0]
        self.scaler = torch.cuda.amp.GradScaler()
    def build_model(self):
        return make_model(self.cfg.model).cuda()
    def build_optimizer(self):
        return make_optimizer(self.cfg.optimizer, self.model)
    def train(self):
        for batch in self.loader:
            with torch.cuda.amp.autocast(dtype=TYPES[self.cfg.amp_dtype]):
                loss = self.model(batch.rows(3)[0].words.split(" "))["loss"]
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""


def _done(folder: Path, target: str = "torch_npu") -> Verification:
    (folder / "parts.py").write_text("raise RuntimeError", encoding="utf-8")
    (folder / "beside.py").write_text("raise RuntimeError", encoding="utf-8")
    (folder / "train.py").write_text(TRAINER, encoding="utf-8")
    asked = VerifyOptions(losses=4, at=1, modes=("float32", "overflow"))
    found = load_target(target)
    result = port_tree(walk(folder / "train.py"), found, Options())
    place = steps.Place(folder, folder)

    def beside() -> steps.Place:
        msg = "beside.py, which it imports, cannot be ported: it is too long"
        raise StepError(msg)

    return steps.verify_step(
        result.files[0], result, found, place, asked, "", "", lambda _: None, None, beside
    )


def test_nothing_is_imported_but_torch_and_numpy(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("x = 1", encoding="utf-8")
    step = extract(TRAINER, tmp_path, forward=False, bare=True)
    assert {"beside", "pytest"} <= set(step.gone)
    assert not {"torch", "numpy", "os"} & set(step.gone)
    assert "sys.path[:0] = []" in step.script(tmp_path, "")
    whole = extract(TRAINER, tmp_path, forward=False)
    assert "beside" not in whole.gone
    assert str(tmp_path) in whole.script(tmp_path, "")


def test_a_part_of_torch_that_is_not_there_takes_nothing_else_with_it(tmp_path: Path) -> None:
    step = extract(TRAINER, tmp_path, forward=False, bare=True)
    assert "torch.utils.tensorboard" in step.gone


def test_a_step_is_verified_without_what_lies_beside_it(tmp_path: Path) -> None:
    done = _done(tmp_path)
    assert done.passed, done.lines()
    assert done.step is not None
    assert done.step["bare"]
    assert "cannot be ported: it is too long" in done.step["why_without"]
    assert any("without the modules beside it" in line for line in done.lines())
    assert "was not run, without what it imports" in _verified(done.to_dict())
    assert done.comparisons[1].original_scales[-1] == 32768.0


@pytest.mark.slow
def test_the_same_for_mindspore(tmp_path: Path) -> None:
    done = _done(tmp_path, "mindspore")
    assert done.passed, done.lines()
    assert done.step is not None
    assert done.step["bare"]


@pytest.mark.parametrize(
    ("made", "asked"),
    [
        ("T = dict(half=torch.half, bf=torch.bfloat16)", "T[cfg.dtype]"),
        ('T = {"fp16": torch.float16, "fp32": torch.float32}', "T[args.precision]"),
        ("x = 1", '{"fp16": torch.float16}[args.precision]'),
    ],
)
def test_a_type_by_its_name(made: str, asked: str, tmp_path: Path) -> None:
    module = Module(f"import torch\n{made}\ny = {asked}\n")
    item = next(one for one in ast.walk(module.tree) if isinstance(one, ast.Subscript))
    assert types_asked(module, item)
    assert may_go(module, 3, (5, 6))


def test_other_items_are_no_types() -> None:
    module = Module('import torch\nT = {"a": torch.float16, "b": 3}\ny = T[x]\n')
    item = next(one for one in ast.walk(module.tree) if isinstance(one, ast.Subscript))
    assert not types_asked(module, item)


def test_what_is_made_before_the_loop_may_go_unless_it_trains() -> None:
    text = """import torch
a = labels[:, 0]
b = torch.tensor(labels)
c = torch.optim.SGD(net.parameters(), 0.1)
d = torch.cuda.amp.GradScaler()
"""
    module = Module(text)
    assert [may_go(module, line, (9, 9), bare=True) for line in (2, 3, 4, 5)] == [
        *(True, True),
        *(False, False),
    ]
    assert not any(may_go(module, line, (9, 9)) for line in (2, 3, 4, 5))


def test_nodes_below_are_in_the_order_of_the_text() -> None:
    tree = ast.parse("f(a, b)[c] = [d, *e]")
    assert [n.id for n in below(tree) if isinstance(n, ast.Name)] == [*"fabcde"]
    assert children(tree) == list(ast.iter_child_nodes(tree))
