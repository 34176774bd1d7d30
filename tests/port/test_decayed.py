"""The report says what weight decay does to Parameters that a loss does not reach."""

from __future__ import annotations

import pytest

from mpcore_port.engine import port_text

from .ports import TARGET

SCRIPT = """import torch
net = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 1), "b": torch.nn.Linear(2, 1)})
opt = torch.optim.OPTIMIZER
for x in [torch.ones(1, 2)]:
    opt.zero_grad()
    loss = net["a"](x).sum()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("AdamW(net.parameters(), lr=0.1)", True),
        ("AdamW(net.parameters(), lr=0.1, weight_decay=0.0)", False),
        ("SGD(net.parameters(), lr=0.1, weight_decay=1e-4)", True),
        ("SGD(net.parameters(), lr=0.1)", False),
        ("Adam(net.parameters(), lr=0.1)", False),
        ('SGD([{"params": net.parameters(), "weight_decay": 1e-4}], lr=0.1)', True),
    ],
)
def test_decay_of_what_a_loss_does_not_reach(optimizer: str, said: bool) -> None:
    assert _says(SCRIPT.replace("OPTIMIZER", optimizer)) is said


MADE = """import torch
def made(net):
    return torch.optim.AdamW(net.parameters(), lr=0.1)
class Trainer:
    def __init__(self, net, opt):
        self.net = net
        self.opt = OPTIMIZER
    def step(self, x):
        self.opt.zero_grad()
        loss = self.net(x).sum()
        loss.backward()
        self.opt.step()
"""


@pytest.mark.parametrize("optimizer", ["made(net)", "opt", "self.init_optimizer()"])
def test_an_optimizer_that_another_place_makes_may_decay(optimizer: str) -> None:
    assert _says(MADE.replace("OPTIMIZER", optimizer))


def _says(script: str) -> bool:
    found = port_text(script, TARGET)
    assert "value_and_grad" in found.text or "train_cell" in found.text
    return any("is decayed" in edit.effect for edit in found.edits)
