"""What unseen scripts showed: masked scores, limits of floats, pictures of loggers."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from .ports import compare, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

MASKED = """import torch
from torch import nn
import torch.nn.functional as F
made = []
x = torch.arange(40.0).reshape(4, 10) / 7
y = torch.tensor([0, 1, -100, 3])
weight = torch.arange(10.0) / 5 + 0.1
for least in (float("-inf"), -torch.finfo(x.dtype).max, -1e4):
    far = x.clone()
    far[:, 5:] = least
    for how in ("mean", "sum", "none"):
        made.append(F.cross_entropy(far, y, reduction=how))
        made.append(F.nll_loss(far.log_softmax(-1), y, weight, reduction=how))
    made += [nn.CrossEntropyLoss(weight)(far, y)]
    made += [nn.CrossEntropyLoss(ignore_index=3)(far, y.abs() % 97)]
made.append(F.cross_entropy(x[:, :4].reshape(4, 4), y % 4, label_smoothing=0.1))
mask = torch.tensor([[True, False], [False, False]])
score = torch.ones(2, 2)
score.masked_fill_(mask, -torch.finfo(score.dtype).max)
limits = torch.finfo(torch.float16)
made += [score, score.softmax(dim=-1), torch.full((2,), limits.max), limits.bits]
made += [torch.tensor([limits.eps, limits.tiny, limits.min])]
"""


def test_labels_beside_scores_that_are_masked(tmp_path: Path) -> None:
    found = ported(MASKED)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    compare(MASKED, found.text, tmp_path)


COMPILED = """import torch
from torch import nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)
    def forward(self, x, mask):
        return self.inner(x).masked_fill(mask, float("-inf"))
torch.manual_seed(0)
net = Net()
with torch.no_grad():
    net.inner.weight.copy_(torch.arange(24.0).reshape(4, 6) / 24)
    net.inner.bias.zero_()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
made = []
for turn in range(3):
    x = torch.arange(12.0).reshape(2, 6) / 12 + turn
    mask = torch.tensor([[False, False, True, True], [False, False, False, True]])
    loss = F.cross_entropy(net(x, mask), torch.tensor([0, 2]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.item())
"""


def test_gradients_of_labels_beside_masked_scores(tmp_path: Path) -> None:
    compare(COMPILED, ported(COMPILED).text, tmp_path)


PICTURE = """import torch
import wandb
x = torch.arange(48.0).reshape(1, 3, 4, 4)
made = [wandb.Image(x, caption="a"), wandb.Image("path.png")]
"""


def test_a_logger_is_given_pictures_as_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = types.ModuleType("wandb")
    vars(package)["Image"] = lambda data, caption="": data
    monkeypatch.setitem(sys.modules, "wandb", package)
    found: Any = loaded(ported(PICTURE).text, tmp_path)["made"]
    assert found[0].shape == (4, 4, 3)
    assert found[0].dtype == np.uint8
    assert (found[0].min(), found[0].max()) == (0, 255)
    assert found[1] == "path.png"
