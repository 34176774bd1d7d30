"""What an optimizer's groups are set to comes back with its state, through a file as well."""

from __future__ import annotations

import pytest

from .ports import beside

SCRIPT = """
import copy
import os
import tempfile
import numpy as np
import torch
from torch import nn, optim
made = []

def filled(net):
    with torch.no_grad():
        for number, p in enumerate(net.parameters()):
            p.fill_(0.1 * (number + 1))
    return net

def run(net, optimizer, n):
    for _ in range(n):
        loss = net(torch.tensor([[1.0, 2.0], [0.5, -1.0]])).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def there_and_back(state):
    path = os.path.join(tempfile.mkdtemp(), "a.pth")
    torch.save({"optimizer": state}, path)
    return torch.load(path, weights_only=False)["optimizer"]

net = filled(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
def groups(**first):
    return [{"params": net[0].parameters(), **first}, {"params": net[1].parameters()}]
"""
FIRST = {
    "AdamW": "optim.AdamW(groups(lr_scale=0.5, name='a'), lr=0.05, betas=(0.8, 0.95), eps=1e-6)",
    "SGD": "optim.SGD(groups(weight_decay=0.3), lr=0.05, momentum=0.8, nesterov=True)",
}
SECOND = {
    "AdamW": "optim.AdamW(groups(), lr=0.01)",
    "SGD": "optim.SGD(groups(), lr=0.01, momentum=0.1)",
}
ASKED = {"AdamW": ["betas", "lr_scale", "eps"], "SGD": ["momentum", "weight_decay"]}


@pytest.mark.parametrize("way", ["copy.deepcopy", "there_and_back"])
@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_settings_of_groups_are_loaded(kind, way, tmp_path):
    asked = "".join(f'made.append(optimizer.param_groups[0]["{key}"])\n' for key in ASKED[kind])
    beside(
        SCRIPT
        + f"optimizer = {FIRST[kind]}\nrun(net, optimizer, 2)\n"
        + ('optimizer.param_groups[1]["lr_scale"] = np.float64(2.0)\n' if kind == "AdamW" else "")
        + f"state = {way}(optimizer.state_dict())\n"
        + 'state["param_groups"][1]["lr"] = 0.02\n'
        + f"optimizer = {SECOND[kind]}\noptimizer.load_state_dict(state)\n"
        + asked
        + 'made.append(optimizer.param_groups[1]["lr"])\nrun(net, optimizer, 2)\n'
        + "made += [p.detach() for p in net.parameters()]\n",
        tmp_path,
    )


CYCLED = """
optimizer = optim.AdamW(net.parameters(), lr=0.05)
scheduler = optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
for _ in range(3):
    run(net, optimizer, 1)
    scheduler.step()
state, plan = there_and_back(optimizer.state_dict()), scheduler.state_dict()
optimizer = optim.AdamW(net.parameters(), lr=0.05)
scheduler = optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
optimizer.load_state_dict(state)
scheduler.load_state_dict(plan)
for _ in range(3):
    run(net, optimizer, 1)
    scheduler.step()
made += [p.detach() for p in net.parameters()]
"""


def test_a_cycle_of_momentum_goes_on_where_it_was(tmp_path):
    beside(SCRIPT + CYCLED, tmp_path)
