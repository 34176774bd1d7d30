"""Ports to MindSpore: losses whose old switches (``size_average``, ``reduce``) are variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import beside

if TYPE_CHECKING:
    from pathlib import Path

SWITCHED = """import torch
import torch.nn.functional as F
from torch import nn
class Loss2d(nn.Module):
    def __init__(self, weight=None, size_average=True, ignore_index=255):
        super().__init__()
        self.loss = nn.NLLLoss(weight, size_average, ignore_index)
        self.old = nn.NLLLoss2d(weight, size_average, ignore_index)
        self.whole = nn.CrossEntropyLoss(weight, size_average, ignore_index)
    def forward(self, x, labels):
        logs = F.log_softmax(x, dim=1)
        return self.loss(logs, labels) + 2 * self.old(logs, labels) + 3 * self.whole(x, labels)
def far(x, y, size_average=None, reduce=None, reduction="mean"):
    one = F.mse_loss(x, y, size_average, reduce, reduction=reduction)
    return one.sum() + F.smooth_l1_loss(x, y, size_average=size_average, reduce=reduce).sum()
x = torch.linspace(-1.0, 1.0, 24).reshape(1, 3, 2, 4)
y = x.sin() * 2
labels = torch.tensor([[[0, 1, 2, 255], [2, 2, 0, 1]]])
weight = torch.tensor([1.0, 2.0, 0.5])
made = [Loss2d(w, average)(x, labels) for w in (None, weight) for average in (True, False, None)]
for average in (True, False, None):
    for reduce in (True, False, None):
        made += [far(x, y, average, reduce, reduction) for reduction in ("sum", "mean")]
made += [nn.NLLLoss2d()(F.log_softmax(x, 1), labels.clamp(max=2))]
made += [nn.NLLLoss2d(size_average=False)(F.log_softmax(x, 1), labels.clamp(max=2))]
made += [nn.BCEWithLogitsLoss(size_average=average)(x, x.sigmoid()) for average in (True, False)]
made += [nn.KLDivLoss(size_average=average)(x, x.sigmoid()) for average in (True, False)]
"""


@pytest.mark.filterwarnings("ignore")  # torch tells their new spelling
def test_the_old_switches_may_be_variables(tmp_path: Path) -> None:
    text = beside(SWITCHED, tmp_path).text
    assert "refused" not in text
    assert "old_reduction" in text
