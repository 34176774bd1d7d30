"""What modules of networks and losses are written with, each the smallest script beside torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import FILLED, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

CASES = {
    "settings of where and what, starred": (
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, size, device=None, dtype=None):\n"
        "        settings = {'device': device, 'dtype': dtype}\n"
        "        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.empty(size, 2, **settings))\n"
        "        self.other = nn.Parameter(torch.empty((size, 2), **settings))\n"
        "        self.register_buffer('mask', torch.ones(size, **settings))\n"
        "        self.fc = nn.Linear(2, size, **settings)\n"
        "    def forward(self, x):\n"
        "        own = torch.full((3,), 2.0, **{'device': x.device, 'dtype': x.dtype})\n"
        "        return self.fc(x @ (self.weight - self.other * 2)) * self.mask + own\n"
        "net = filled(Net(3))\n"
        "made.append(net(torch.arange(6.0).reshape(2, 3)))\n"
    ),
    "names in a state without what wraps the network": (
        "from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present\n"
        "net = filled(torch.nn.Linear(3, 2))\n"
        "state = {f'module.{key}': value * 2 for key, value in net.state_dict().items()}\n"
        "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, 'net.')\n"
        "made.append(len([key for key in state if key.startswith('module.')]))\n"
        "consume_prefix_in_state_dict_if_present(state, prefix='module.')\n"
        "net.load_state_dict(state)\n"
        "made += [net.weight, net.bias]\n"
    ),
    "a network that is made between two others' passes": (
        "from torch import nn\n"
        "first = filled(nn.Linear(3, 3))\n"
        "x = first(torch.ones(4, 3))\n"
        "net = filled(nn.Linear(3, 2))\n"
        "opt = torch.optim.SGD([*first.parameters(), *net.parameters()], lr=0.1)\n"
        "loss = net(x).pow(2).mean()\n"
        "loss.backward()\n"
        "opt.step()\n"
        "made += [loss.item(), net.weight, first.weight]\n"
    ),
}

OWN_STEP = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
    def forward(self, x):
        return self.fc(x)
    def step(self, batch):
        return {"loss": self(batch["x"]).pow(2).mean()}
def train(model, batches, optimizer):
    for x in batches:
        out = model.step({"x": x})
        loss = out["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_networks_own_step_is_no_optimizers() -> None:
    found = ported(OWN_STEP)
    assert "port.record()" not in found.text
    assert "model.step({" in found.text


@pytest.mark.parametrize("case", CASES)
def test_in_modules(case: str, tmp_path: Path) -> None:
    beside(FILLED + CASES[case], tmp_path)
