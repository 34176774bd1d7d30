"""Parameters that are frozen, and set free, while an optimizer with weight decay has them."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = """import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)
    def forward(self, x):
        return self.head(torch.tanh(self.fc(x)))
net = Net()
for p in net.parameters():
    p.data.copy_(torch.cos(torch.arange(p.numel() * 1.0)).view(p.shape) * 0.3)
x = torch.sin(torch.arange(32.0)).view(8, 4)
y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
criterion = nn.CrossEntropyLoss()
made = []
def freeze(part, on):
    for p in part.parameters():
        p.requires_grad = not on
"""
MAKE = "optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)\n"
LOOP = """
for epoch in range(3):
    {change}
    for _ in range(2):
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        {clip}
        optimizer.step()
        made.append(loss)
made += list(net.parameters())
"""
CLIP = "nn.utils.clip_grad_norm_(net.parameters(), 0.1)"
CASES = {
    "before all": "freeze(net.fc, True)\n" + MAKE + LOOP.format(change="pass", clip="pass"),
    "before, clipped": "freeze(net.fc, True)\n" + MAKE + LOOP.format(change="pass", clip=CLIP),
    "set free": (
        "freeze(net.fc, True)\n"
        + MAKE
        + LOOP.format(change="freeze(net.fc, epoch == 0)", clip=CLIP)
    ),
    "frozen since": MAKE + LOOP.format(change="freeze(net.fc, epoch == 1)", clip="pass"),
    "by a method": (
        MAKE.replace("SGD", "AdamW").replace("momentum=0.9, ", "")
        + LOOP.format(change="if epoch == 1:\n        net.fc.requires_grad_(False)", clip="pass")
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_frozen_parameters_do_not_move(case: str, tmp_path: object) -> None:
    beside(HEAD + CASES[case], tmp_path)  # type: ignore[arg-type]


STALE = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1)
loss = criterion(net(x), y)
loss.backward()
print(net.fc.weight.grad.abs().sum())
freeze(net.fc, True)
optimizer.step()
made += list(net.parameters())
"""


def test_gradients_of_before_still_move_them(tmp_path: object) -> None:
    beside(HEAD + STALE, tmp_path)  # type: ignore[arg-type]


def test_a_tensor_says_it_by_itself() -> None:
    found = ported(HEAD + "w = torch.ones(2)\nw.requires_grad_(False)\nmade.append(w)\n")
    assert "port.requires_grad_(w" not in found.text
