"""What readers of fourteen unseen ports found wrong: each the smallest script beside torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import FILLED, beside

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """import inspect
from torch import nn
batches = [torch.linspace(-1.0, s, 6).view(2, 3) for s in (1.0, 2.0, 3.0, 4.0)]
net = filled(nn.Linear(3, 2))
"""
CASES = {
    "a loss that hangs on nothing moves nothing": (
        "opt = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1)\n"
        "for i, x in enumerate(batches):\n"
        "    loss = net(x).pow(2).mean()\n"
        "    if i == 2:\n"
        "        loss = torch.tensor(0.0, requires_grad=True)\n"
        "    opt.zero_grad()\n"
        "    (loss / 2).backward()\n"
        "    opt.step()\n"
        "    made.append(loss.item())\n"
    ),
    "an optimizer of its own steps where all is recorded": (
        "class Own(torch.optim.Optimizer):\n"
        "    def __init__(self, params, lr):\n"
        "        super().__init__(params, dict(lr=lr))\n"
        "    def step(self):\n"
        "        for group in self.param_groups:\n"
        "            for p in group['params']:\n"
        "                state = self.state[p]\n"
        "                if not state:\n"
        "                    state['mean'] = torch.zeros_like(p.data.float())\n"
        "                state['mean'].mul_(0.9).add_(p.grad.data.float(), alpha=0.1)\n"
        "                p.data.add_(state['mean'], alpha=-group['lr'])\n"
        "opt = Own(net.parameters(), 0.1)\n"
        "for x in batches:\n"
        "    opt.zero_grad()\n"
        "    for y in net(x):\n"
        "        loss = y.pow(2).sum()\n"
        "        loss.backward(retain_graph=True)\n"
        "    opt.step()\n"
    ),
    "a method that is asked for, a state of the same kind": (
        "opt = torch.optim.AdamW(net.parameters(), lr=0.1)\n"
        "made.append('set_to_none' in inspect.signature(opt.zero_grad).parameters)\n"
        "for x in batches:\n"
        "    opt.zero_grad()\n"
        "    net(x).pow(2).mean().backward()\n"
        "    opt.step()\n"
        "    state = opt.state_dict()\n"
        "    opt.load_state_dict(type(state)({key: value for key, value in state.items()}))\n"
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_as_beside_torch(case: str, tmp_path: Path) -> None:
    tail = "made += [p.detach() for p in net.parameters()]\n"
    beside(FILLED + HEAD + CASES[case] + tail, tmp_path)
