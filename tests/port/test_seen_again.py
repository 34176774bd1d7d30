"""A name that is given a view of what it held: nothing else holds it, where nothing did before."""

from __future__ import annotations

import pytest

from .ports import beside

HEAD = """import torch
import torch.nn.functional as F
from torch import nn
class Kept(nn.Module):
    def forward(self, pred, valid, on):
"""
CHANGED = """
        if on:
            prob = prob.masked_fill_(~valid, 1)
        return prob.sum(0), pred
pred, valid = torch.arange(6.0).reshape(2, 3), torch.tensor([True, False, True])
made = [*Kept()(pred, valid, True)]
"""
ALONE = {
    "of a call": (
        "prob = F.softmax(pred, dim=1)",
        "prob = (prob.transpose(0, 1)).reshape(3, -1).t()",
    ),
    "twice": ("prob = pred * 2", "prob = prob.view(3, 2)", "prob = prob.reshape(2, 3)"),
}
ALONE["made anew"] = ("prob = pred", "prob = prob.view(2, 3)", "prob = prob * valid.float()")
SHARED = {
    "an argument": ("prob = pred", "prob = prob.view(2, 3)"),
    "a name before": ("prob = pred * 2", "other = prob", "prob = prob.view(2, 3)"),
    "a list before": ("prob = pred * 2", "a = [prob]", "prob = prob.view(2, 3)"),
}


def script(lines):
    return HEAD + "\n".join(" " * 8 + line for line in lines) + CHANGED


@pytest.mark.parametrize("lines", ALONE.values(), ids=ALONE)
def test_a_view_of_what_was_its_own_is_changed_in_place(lines, tmp_path):
    beside(script(lines), tmp_path)


@pytest.mark.parametrize("lines", SHARED.values(), ids=SHARED)
def test_a_view_of_what_others_hold_is_written_and_listed(lines, tmp_path):
    found = beside(script(lines), tmp_path)
    (line,) = [edit for edit in found.edits if "masked_fill_" in edit.old]
    assert line.kind == "unproven"
    assert "a view raises" in line.reason


@pytest.mark.filterwarnings("ignore:reduction")
def test_the_mean_has_an_old_name(tmp_path):
    found = beside(
        """import torch
from torch import nn
x, y = torch.arange(6.0).reshape(2, 3), torch.tensor([2, 1])
made = [
    nn.CrossEntropyLoss(reduction="elementwise_mean", ignore_index=1)(x, y),
    nn.MSELoss(reduction="elementwise_mean")(x, x * 2),
]
""",
        tmp_path,
    )
    assert "elementwise" not in found.text
