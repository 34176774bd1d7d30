"""Losses over alignments, and pooling along a sequence, in scripts beside torch."""

from __future__ import annotations

from .ports import beside

HEAD = """import torch
from torch import nn
import torch.nn.functional as F
made = []
x = torch.linspace(-1.0, 1.0, 48).view(2, 6, 4)
"""
ALIGNED = """
net = nn.Linear(4, 5)
for p in net.parameters():
    p.data.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
criterion = nn.CTCLoss(blank=0, zero_infinity=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
for turn in range(3):
    scores = F.log_softmax(net(x), dim=2).transpose(0, 1)
    sizes = torch.IntTensor([scores.size(0)] * 2)
    loss = criterion(scores, torch.IntTensor([1, 2, 3]), sizes, torch.IntTensor([2, 1]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
scores = scores.detach()
rows = torch.tensor([[1, 1, 1, 1], [2, 3, 1, 2]])
made.append(F.ctc_loss(scores, rows, [6, 6], [3, 4], reduction="none"))
made.append(F.ctc_loss(scores, rows, [6, 2], [4, 4], reduction="none"))
made.append(F.ctc_loss(scores, rows, (6, 2), (4, 4), 0, "sum", True))
made.append(F.ctc_loss(scores[:, 0], rows[1], torch.tensor(6), torch.tensor(4)))
"""


def test_a_loss_over_alignments(tmp_path):
    beside(HEAD + ALIGNED, tmp_path)


def test_pooling_along_a_sequence(tmp_path):
    body = "made += [F.max_pool1d(x, x.size(2)).squeeze(2), F.max_pool1d(x, 3, 2, padding=1)]\n"
    beside(HEAD + body, tmp_path)
