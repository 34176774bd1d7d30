"""Two scalers in one process, and losses that nobody says which of them scales."""

from __future__ import annotations

from .ports import beside

SCRIPT = """
import torch
from torch import nn
made = []

class Scaler:
    def __init__(self):
        self.inner = torch.amp.GradScaler("cpu", init_scale=1024.0)
    def __call__(self, loss, optimizer):
        self.inner.scale(loss).backward()
        self.inner.step(optimizer)
        self.inner.update()

def step(net, x, optimizer, scaler=None):
    optimizer.zero_grad()
    loss = net(x).pow(2).mean()
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler(loss, optimizer)
    return loss

one, other = nn.Linear(2, 1), nn.Linear(2, 1)
for net in (one, other):
    nn.init.constant_(net.weight, 0.5)
    nn.init.constant_(net.bias, 0.1)
optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, other)]
scalers = [Scaler(), Scaler()]
x = torch.tensor([[1.0, 2.0], [0.5, -1.0]])
for turn in range(3):
    for net, optimizer, scaler in zip((one, other), optimizers, scalers):
        made.append(step(net, x, optimizer, scaler if turn else None).detach())
made += [one.weight.detach(), other.weight.detach()]
"""


def test_a_loss_goes_back_under_its_own_scaler(tmp_path):
    beside(SCRIPT, tmp_path)
