"""What scripts of a wider mix showed: tensors through names, gradient switches, own objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import FILLED, NET, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

# --- tensors that a name was given out of an attribute --------------------------------------------

THROUGH_A_NAME = f"""{FILLED}
from torch.optim import Optimizer
{NET}
class Counted(Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr))
        self.total, self.n = torch.zeros(2), 0
        self.total = torch.zeros(2)
    @torch.no_grad()
    def step(self, closure=None):
        s = self.total
        s += 1
        n = self.n
        n += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"])
class Meter:
    def __init__(self):
        self.count = torch.zeros(2)
        self.calls = 3
    def add(self, x):
        c = self.count
        c += x
        calls = self.calls
        calls += 1
net = Net()
opt, meter = Counted(net.parameters()), Meter()
for i in range(3):
    opt.zero_grad()
    loss = (net(torch.ones(2, 3)) ** 2).mean()
    loss.backward()
    opt.step()
    meter.add(torch.tensor([1.0, 2.0]))
    made.append(loss.item())
held = vars(meter)["count"]
made += [vars(opt)["total"], held, opt.n, meter.calls]
"""


def test_an_attributes_tensor_is_changed_through_a_name(tmp_path: Path) -> None:
    found = beside(THROUGH_A_NAME, tmp_path)
    assert "n += 1" in found.text
    assert "calls += 1" in found.text


# --- what is asked by getattr ---------------------------------------------------------------------


def test_whether_a_gradient_is_wanted_is_asked_by_getattr(tmp_path: Path) -> None:
    script = f"""{FILLED}{NET}
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(3):
    opt.zero_grad()
    loss = net(torch.ones(2, 3)).pow(2).mean() if i != 1 else torch.zeros(())
    if getattr(loss, "requires_grad", False):
        loss.backward()
        opt.step()
        made.append(i)
made += [net.weight, getattr(3, "requires_grad", False)]
"""
    found = beside(script, tmp_path)
    said = {edit.kind for edit in found.edits if edit.old.startswith("getattr(loss")}
    assert said == {"unproven"}


def test_a_parameter_says_by_itself_what_it_wants() -> None:
    asked = "[getattr(p, 'requires_grad', False) for p in net]"
    assert "wants_grad" not in ported(f"import torch\ndef f(net):\n    return {asked}\n").text


# --- words for the device that are gone -----------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        ('device == "cuda"', []),
        ('torch.autocast("cuda", torch.float16)', []),
        ('"cuda" in device', [3]),
    ],
)
def test_a_word_that_is_asked_for_by_the_runtime_is_not_told_of(
    asked: str, lines: list[int]
) -> None:
    found = ported(f"import torch\ndef f(device):\n    return {asked}\n")
    assert [edit.line for edit in found.edits if "is kept says" in edit.reason] == lines
