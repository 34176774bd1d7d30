"""Losses that are made of torch's ``_Loss`` and ``_WeightedLoss``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.port.ports import FILLED, beside

if TYPE_CHECKING:
    from pathlib import Path

DICE = (
    FILLED
    + """from torch.nn.modules.loss import _Loss, _WeightedLoss
import torch.nn.functional as F
class Dice(_Loss):
    def __init__(self, mode, smooth=0.0, **kwargs):
        assert mode in {"binary", "multiclass"}
        super().__init__(**kwargs)
        self.mode, self.smooth = mode, smooth
    def forward(self, pred: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
        if self.mode == "multiclass":
            pred = pred.log_softmax(dim=1).exp()
            true = F.one_hot(true, pred.size(1)).permute(0, 2, 1)
        scores = 1.0 - 2.0 * (pred * true).sum((0, 2)) / (pred + true).sum((0, 2)).clamp_min(1e-7)
        scores *= (true.sum((0, 2)) > 0).to(scores.dtype)
        return self.given(scores)
    def given(self, scores):
        return scores.mean() if self.reduction == "mean" else scores.sum()
class Power(Dice):
    def __init__(self, *args, gamma=2.0):
        super(Power, self).__init__(*args, reduction="sum")
        self.gamma = gamma
    def given(self, scores):
        return super().given(scores) ** self.gamma
class Weighted(_WeightedLoss):
    def __init__(self, weight=None, reduction="mean"):
        super().__init__(weight, reduction=reduction)
    def forward(self, pred, true):
        each = F.cross_entropy(pred, true, weight=self.weight, reduction="none").sum(-1)
        return each.mean() if self.reduction == "mean" else each.sum()
net = filled(nn.Conv1d(2, 3, 1))
losses = [Dice("multiclass"), Power("multiclass", 0.5, gamma=1.5)]
losses += [Weighted(torch.tensor([1.0, 2.0, 0.5])), Weighted(reduction="sum")]
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.arange(12.0).view(2, 2, 3) / 6, torch.tensor([[0, 1, 0], [1, 1, 0]])
for criterion in losses:
    opt.zero_grad()
    loss = criterion(net(x), y)
    loss.backward()
    opt.step()
    made += [loss.detach(), net.weight.detach().clone()]
made += [sum(v.sum() for v in losses[2].state_dict().values())]
"""
)


def test_losses_of_a_scripts_own_are_made_of_torchs_bases(tmp_path: Path) -> None:
    done = beside(DICE, tmp_path)
    assert not [edit for edit in done.edits if edit.kind == "refused"]
