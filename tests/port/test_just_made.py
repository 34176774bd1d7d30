"""Attributes that a function has just made, and changes in place; bases that have no equal."""

from __future__ import annotations

import pytest

from .ports import FILLED, beside, ported

LOSS = """class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.near = self.far = self.loss = None
    def forward(self, x, y):
        self.near = torch.sigmoid(x)
        self.far = 1.0 - self.near
        self.far.add_(0.05).clamp_(max=1)
        self.loss = y * torch.log(self.near.clamp(min=1e-8))
        self.loss.add_((1 - y) * torch.log(self.far.clamp(min=1e-8)))
        if self.training:
            self.loss.mul_(torch.pow(1 - self.near.detach(), 2))
        self.loss *= 2
        return -self.loss.sum()
"""


def test_a_loss_is_changed_where_it_was_just_made(tmp_path):
    beside(
        f"""{FILLED}{LOSS}
net, criterion = filled(nn.Linear(3, 2)), Weighted()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.linspace(-2, 2, 12).view(4, 3), torch.tensor([[1.0, 0.0]] * 4)
for _ in range(3):
    loss = criterion(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.item())
made += [net.weight, criterion.far]
""",
        tmp_path,
    )


@pytest.mark.parametrize(
    "lines",
    [
        "        self.far = 1.0 - x\n        self.kept = self.far\n        self.far.add_(1)\n"
        "        return self.kept\n",
        "        self.far = x\n        self.far.add_(1)\n        return x\n",
        "        if y:\n            self.far = 1.0 - x\n        self.far.add_(1)\n"
        "        return self.far\n",
    ],
)
def test_what_another_name_holds_is_refused_as_before(lines):
    found = ported(
        "import torch\nfrom torch import nn\nclass A(nn.Module):\n"
        f"    def forward(self, x, y):\n{lines}"
    )
    assert not [edit for edit in found.edits if edit.rule == "just made"]


def test_a_base_without_an_equal_stops_who_makes_one(tmp_path):
    script = (
        "import torch\nimport torchvision\nclass Pictures(torchvision.datasets.CelebA):\n    pass\n"
    )
    assert ported(f"{script}made = [1]\n").status == "runs unless line 3 is reached"
    assert ported(f"{script}made = Pictures()\n").status == "does not run"
