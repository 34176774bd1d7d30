"""Annotated assignments in training steps, and ports that Python would not compile."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst
import pytest

from mpcore_port.engine import port_text
from mpcore_port.rule import Rule

from .ports import TARGET, beside, ported

HEAD = """import torch
made = []
net = torch.nn.Linear(2, 1)
for p in net.parameters():
    p.data.fill_(0.5)
opt: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
batches = [torch.ones(2, 2), torch.ones(2, 2) * 2]
"""
LOOPS = {
    "a step": """
def run():
    loss: torch.Tensor
    total: float = 0.0
    for x in batches:
        opt.zero_grad()
        y: torch.Tensor = net(x)
        loss: torch.Tensor = y.pow(2).sum()
        loss.backward()
        opt.step()
        total += loss.item()
        made.append(y.detach())
    made.append(total)
run()
""",
    "two ways": """
def run(scaled, step):
    for x in batches:
        y: torch.Tensor = net(x)
        loss: torch.Tensor = y.pow(2).sum()
        if scaled:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 5)
        else:
            loss.backward()
        if step:
            opt.step()
            opt.zero_grad()
        made.append(loss.detach())
        made.append(y.detach())
run(True, True)
run(False, True)
""",
    "a parameter's declaration": """
def run():
    for x in batches:
        y: torch.Tensor
        if x.sum() > 4:
            y = net(x) * 2
        else:
            y = net(x)
        loss: torch.Tensor = y.pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        made.append(y.detach())
run()
""",
    "at the top": """
for x in batches:
    y: torch.Tensor = net(x)
    loss: torch.Tensor = y.pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(y.detach())
""",
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_annotated_values_train_as_plain_ones(loop, tmp_path):
    beside(HEAD + loop, tmp_path)


def test_fields_of_classes_keep_their_annotations():
    script = HEAD + LOOPS["at the top"]
    fields = "class Config:\n    rate: float = 0.1\n    names: list = None\n"
    assert fields in ported(script + fields).text


def test_what_does_not_train_keeps_its_annotations():
    script = "import torch\nx: torch.Tensor = torch.ones(2)\n"
    assert "x: ms.Tensor = ops.ones(2)" in ported(script).text


class _Nonlocal(Rule):
    """Writes what parses, and does not compile."""

    name = "planted"
    reason = "planted"
    visits = (cst.Pass,)

    def leave(self, old, new, at):
        at.note(self, old, "nonlocal x")
        return cst.Nonlocal([cst.NameItem(cst.Name("x"))])


def test_a_port_that_python_does_not_compile_is_not_written():
    target = replace(TARGET, passes=lambda _: [[_Nonlocal()]])
    found = port_text("y = 1\npass\n", target)
    assert found.text == "y = 1\npass\n"
    assert found.failures == (
        "script.py: the port would not compile (nonlocal declaration not allowed at module level, "
        "line 2), the original is kept",
    )
    broken = port_text("def f():\n    nonlocal x\npass\n", target)
    assert not broken.failures  # the original does not compile either
