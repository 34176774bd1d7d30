"""What is given to a whole tensor, ``y[...] = x`` and ``p.data[:] = x``: it is copied in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.port.ports import beside

if TYPE_CHECKING:
    from pathlib import Path

APART = """import torch
x = torch.arange(3.0)
y = torch.zeros(3)
y[...] = x
y[0] = 5
z = torch.zeros(2, 3)
z[..., :] = x
z[0, 1] = 9
one = torch.tensor(2.0)
part = torch.ones(2)
one[...] = part[1]
one += 1
x[2] = 7
made = [x, y, z, one, part]
"""

WEIGHTS = """import torch
from torch import nn
class Bins(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.conv = nn.Conv2d(n, 1, 1, bias=False).requires_grad_(False)
        bins = torch.arange(n, dtype=torch.float)
        self.conv.weight.data[:] = nn.Parameter(bins.view(1, n, 1, 1))
        self.out = nn.Linear(n, 2)
        self.out.bias.data[:] = 1.0
        self.out.weight.data[...] = bins / 8
        self.out.bias.data[:2] = 0.5
        self.out.weight.data[1, 2:] = bins[:2]
    def forward(self, x):
        return self.out(x) + self.conv(x[:, :, None, None]).mean()
net = Bins(4)
before = [p.detach().clone() for p in net.parameters()]
kept = {k: v.clone() * 2 for k, v in net.state_dict().items()}
opt = torch.optim.SGD(net.parameters(), lr=0.1)
loss = net(torch.ones(3, 4)).pow(2).mean()
loss.backward()
opt.step()
made = [loss.detach(), net.out.bias.detach().clone(), net.out.weight.detach().clone(), *before]
net.load_state_dict(kept)
made += [net(torch.ones(3, 4)).detach()]
net.conv.weight.data.copy_(torch.ones(1, 4, 1, 1))
made += [net(torch.ones(3, 4)).detach()]
"""


def test_what_is_given_to_a_whole_tensor_is_copied(tmp_path: Path) -> None:
    assert "port.copy_of(" in beside(APART, tmp_path).text


def test_weights_that_are_given_wholly_can_be_loaded_and_trained(tmp_path: Path) -> None:
    beside(WEIGHTS, tmp_path)
