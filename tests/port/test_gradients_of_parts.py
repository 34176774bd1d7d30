"""Parts whose gradients arrive with their axes swapped, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
made = []
net = nn.Linear(3, 4)
with torch.no_grad():
    net.weight.copy_(torch.arange(12.0).reshape(4, 3) / 10)
    net.bias.zero_()
x = torch.arange(12.0).reshape(4, 3) / 7 - 0.5
weights = torch.arange(16.0).reshape(4, 4) / 3
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for turn in range(2):
    out = net(x)
    PARTS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
made.append(net.weight.detach())
"""
SWAPPED = "loss = sum((p.transpose(0, 1) * w.t()).sum() for p, w in zip(parts, weights.split(n)))"
VIEWS = (
    "a, b = torch.split(F.normalize(out, dim=1), [2, 2], dim=0)\n"
    "    both = torch.cat([a.unsqueeze(1), b.unsqueeze(1)], dim=1)\n"
    "    flat = torch.cat(torch.unbind(both, dim=1), dim=0)\n"
    "    loss = (torch.matmul(flat, flat.T) * weights).sum()"
)


@pytest.mark.parametrize(
    "parts",
    [
        f"n = [1, 3]\n    parts = torch.split(out, n, dim=0)\n    {SWAPPED}",
        f"n = 2\n    parts = torch.split(out, n)\n    {SWAPPED}",
        f"n = 2\n    parts = torch.split(tensor=out, split_size_or_sections=n)\n    {SWAPPED}",
        f"n = 2\n    parts = out.split(n)\n    {SWAPPED}",
        f"n = 2\n    parts = torch.chunk(out, 2)\n    {SWAPPED}",
        VIEWS,
    ],
)
def test_parts_get_the_gradients_that_are_theirs(parts, tmp_path):
    beside(SCRIPT.replace("PARTS", parts), tmp_path)
