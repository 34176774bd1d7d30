"""Methods in place that answer, draw or change a part: ``x.gt_(0)`` leaves numbers, no bools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.port.ports import FILLED, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

ANSWERS = """import torch
low = torch.arange(6.0).view(2, 3)
other = torch.tensor([[0.5, 2.0, 1.0], [4.0, 4.0, 4.0]])
above = (low - other).gt_(0)
first = (low - other).min(-1)[0].lt_(0.0)
lowest = (low - other).amin(1, keepdim=True).le_(-1.0)
either = (low - 2.0).logical_or_(first[:, None])
none = low.new_zeros(2, 3).logical_not_()
high = (low - 3).clamp_min_(0.5)
high.clamp_max_(1.5)
made = [above * 2.5, first + 0.25, lowest + 0.25, either + 0.25, none + 0.25, high]
made += [(low + 1).log1p_().sign_(), (low - 2.5).remainder_(3), (low * 3).fmod_(4).expm1_()]
"""

PARTS = """import torch
def wide(x):
    y = x.clone()
    y[..., 0] = x[..., 0] - x[..., 2] / 2
    return y
def scaled(boxes, size):
    boxes[..., 1:5] = wide(boxes[..., 1:5].mul_(size[[1, 0, 1, 0]]))
    half = boxes[:, 0, 2:].div_(2.0) + 1
    return boxes, half
made = [*scaled(torch.arange(24.0).view(2, 2, 6), torch.tensor([2.0, 3.0]))]
"""

DRAWN = """import torch
kept = torch.zeros(50, 2).bernoulli_(1.0)
gone = torch.zeros(50, 2).bernoulli_(torch.zeros(50, 2))
whole = torch.ones(500).random_(2, 5)
small = torch.ones(500).random_(3)
waits = torch.zeros(9000).exponential_(2.0)
made = [kept, gone, whole.min(), whole.max(), small.min(), small.max(), (waits.mean() * 10).round()]
"""


def test_answers_in_place_are_numbers(tmp_path: Path) -> None:
    done = beside(ANSWERS, tmp_path)
    assert not [edit for edit in done.edits if edit.kind == "refused"]


def test_a_part_that_is_changed_within_a_line_is_changed_and_given(tmp_path: Path) -> None:
    done = beside(PARTS, tmp_path)
    assert "port.part_changed(boxes, (..., slice(1, 5)), " in done.text


def test_what_is_drawn_in_place_is_of_its_distribution(tmp_path: Path) -> None:
    done = beside(DRAWN, tmp_path)
    changed = [edit for edit in done.edits if edit.kind == "changed"]
    assert len(changed) == 5
    assert all(edit.effect == "other random numbers" for edit in changed)


def test_random_numbers_without_an_end_are_refused() -> None:
    done = ported("import torch\nx = torch.zeros(3).random_()\n")
    assert [edit.kind for edit in done.edits if "random_" in edit.old] == ["refused"]


TRUTHS = """import torch
def cut(tmp):
    valid = (tmp < 2) & (tmp > -2)
    place = valid.max(-1, keepdim=True)[1]
    return tmp.gather(-1, place).squeeze(-1), valid.max(-1)[0], valid.min(1)[0].float(), valid.max()
made = [*cut(torch.tensor([[3.0, 1.0, -4.0], [0.5, 2.5, 0.1], [-3.0, 5.0, 1.5]]))]
"""


def test_the_first_truth_of_a_row_is_found(tmp_path: Path) -> None:
    beside(TRUTHS, tmp_path)


def test_one_hot_by_a_name_that_is_assigned_again(tmp_path: Path) -> None:
    """pix2pix's labels: `x = x.scatter_(...)`, and what another name takes of it."""
    script = """
import torch
made = []
def one_hot(label, number):
    size = label.size()
    x = torch.FloatTensor(torch.Size((size[0], number, size[2]))).zero_()
    x = x.scatter_(1, label.data.long(), 1.0)
    return x
def both(label, number):
    x = torch.zeros(label.size(0), number, label.size(2))
    y = x.scatter_(1, label, 2.0)
    return x + y
def part(held, label):
    held["a"].scatter_(1, label, 1.0)
    return held["a"]
label = torch.tensor([[[0, 2, 1]], [[1, 1, 0]]])
made += [one_hot(label, 3), both(label, 4), part({"a": torch.zeros(2, 3, 3)}, label)]
"""
    beside(script, tmp_path)


PUT_BACK = (
    FILLED
    + """
net = filled(nn.Linear(4, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    x = torch.sin(torch.arange(24.0) + step).view(6, 4)
    y = x.clone()
    y[y > 0.5] = y[y > 0.5].sub_(0.1)
    y[2] = y[2].mul_(2.0)
    loss = net(y).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made += [loss, y.sum(), x.sum()]
"""
)


def test_a_part_that_gets_what_its_own_change_gives(tmp_path):
    beside(PUT_BACK, tmp_path)
