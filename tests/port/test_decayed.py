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
    ],
)
def test_decay_of_what_a_loss_does_not_reach(optimizer: str, said: bool) -> None:
    found = port_text(SCRIPT.replace("OPTIMIZER", optimizer), TARGET)
    assert "value_and_grad" in found.text or "train_cell" in found.text
    effects = [edit.effect for edit in found.edits if "is decayed" in edit.effect]
    assert bool(effects) is said
