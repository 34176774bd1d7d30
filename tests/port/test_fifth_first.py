"""Faults that readers found at first sight: states in a step, clips, norms of own objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import FILLED, NET, beside

if TYPE_CHECKING:
    from pathlib import Path


AHEAD = f"""{FILLED}
from torch.optim import Optimizer
{NET}
class Ahead(Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr))
        self.n = 0
    def step(self, closure=None):
        self.n += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "buf" not in state:
                    state["buf"] = torch.zeros_like(p.data)
                    state["slow"] = p.data.clone()
                buf = state["buf"]
                buf *= 0.9
                buf += p.grad.data
                p.data.add_(buf, alpha=-group["lr"])
                if self.n % 2 == 0:
                    slow = self.state[p]["slow"]
                    slow += (p.data - slow) * 0.5
                    p.data.copy_(slow)
                if self.n % 3 == 0:
                    for key, value in state.items():
                        value *= 0.7
net = Net()
opt = Ahead(net.parameters())
for i in range(7):
    opt.zero_grad()
    loss = (net(torch.ones(2, 3) * (i + 1)) ** 2).sum() * 0.01
    loss.backward()
    opt.step()
    made.append(net.weight.detach().clone())
"""


def test_states_of_own_steps_keep_what_changes_them(tmp_path: Path) -> None:
    beside(AHEAD, tmp_path)
