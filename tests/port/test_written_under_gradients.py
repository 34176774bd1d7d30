"""In-place methods where gradients go through: masks of attention, parts of helpers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import beside, ported

if TYPE_CHECKING:
    from pathlib import Path

MASKED = """import torch
from torch import nn
made = []
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)
        nn.init.constant_(self.q.bias, 0.1)
        self.q.weight.data = torch.sin(torch.arange(16.0)).view(4, 4)
    def forward(self, x, mask, bias=None):
        q = self.q(x)
        scores = torch.bmm(q, x.transpose(1, 2))
        if mask is not None:
            scores = scores.view(2, 1, 3, 3)
            scores.masked_fill_(mask.unsqueeze(1).unsqueeze(2).to(torch.bool), float("-inf"))
            scores = scores.view(2, 3, 3)
        if bias is not None:
            scores += bias
        scores = scores * 0.5
        shown = self.cut(scores, mask)
        return torch.softmax(shown, -1) @ q
    def cut(self, scores, mask):
        scores.masked_fill_(mask.unsqueeze(1), -3.0)
        return scores
net = Attention()
x = torch.sin(torch.arange(24.0)).view(2, 3, 4)
mask = torch.tensor([[False, False, True], [False, True, True]])
for bias in (None, torch.ones(3, 3) * 0.1):
    loss = net(x, mask, bias).pow(2).sum()
    loss.backward()
    made += [loss.detach(), net.q.weight.grad.clone()]
"""


def test_masks_of_scores_pass_gradients_on(tmp_path: Path) -> None:
    found = beside(MASKED, tmp_path)
    assert "scores = scores.masked_fill(mask.unsqueeze(1).unsqueeze(2)" in found.text
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    listed = [edit.line for edit in found.edits if "a view raises" in edit.reason]
    assert listed == [23]


VIEWED = """import torch
from torch import nn
class Cut(nn.Module):
    def forward(self, x):
        return self.mask(x * 2)
    def mask(self, w):
        v = w.view(-1)
        v.masked_fill_(v > 1, 0.0)
        return w
"""


def test_what_may_raise_of_a_view_is_listed() -> None:
    (line,) = [edit for edit in ported(VIEWED).edits if edit.kind == "unproven"]
    assert line.line == 8
    assert "a view raises" in line.reason
