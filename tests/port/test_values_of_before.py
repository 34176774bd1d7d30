"""What a network gave before its optimizer's step, in a second loss behind that step."""

from __future__ import annotations

import pytest

from .ports import compare, ported

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
made = []
def filled(net, value):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-value, 1.0, p.numel()).view(p.shape))
    return net
class Solver:
    def __init__(self):
        self.coder = filled(nn.Linear(3, 2), 0.5)
        self.judge = filled(nn.Linear(2, 2), 1.0)
        self.first = torch.optim.SGD(self.coder.parameters(), lr=0.5)
        self.second = torch.optim.SGD(self.judge.parameters(), lr=0.5)
    def train(self):
        zeros = torch.zeros(4, dtype=torch.long)
        for i in range(3):
            x = torch.cos(torch.arange(12.0) * (i + 1)).view(4, 3)
            z = self.coder(x)
            seen = self.judge(z)
            loss = (z**2).mean() + (seen[:, :1] - seen[:, 1:]).mean()
            {forgets}
            loss.backward(retain_graph=True)
            self.first.step()
            other = self.judge(x[:, :2].detach())
            judged = F.cross_entropy({seen}, zeros) + other.mean()
            self.second.zero_grad()
            judged.backward()
            self.second.step()
            made.extend([loss, judged])
solver = Solver()
solver.train()
made += [*solver.coder.parameters(), *solver.judge.parameters()]
"""


def _script(forgets: str, seen: str = "seen") -> str:
    return SCRIPT.replace("{forgets}", forgets).replace("{seen}", seen)


@pytest.mark.parametrize("forgets", ["self.first.zero_grad()", "self.coder.zero_grad()"])
def test_what_has_moved_since_gives_its_values_of_before(forgets, tmp_path):
    found = ported(_script(forgets))
    # torch of today runs no graph whose weights were changed in place: the same gradients by hand
    compare(_script(forgets, "self.judge(z.detach())"), found.text, tmp_path)


def test_gradients_that_nobody_forgets_are_made_by_the_weights_of_now_and_said():
    found = ported(_script("self.judge.zero_grad()"))
    said = [edit for edit in found.edits if "torch's values are of before" in edit.effect]
    assert [edit.kind for edit in said] == ["changed"]
    assert said[0].effect.count("self.coder") == 1
