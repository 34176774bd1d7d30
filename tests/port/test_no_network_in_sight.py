"""Losses of functions that nobody calls in a file, and that run no network themselves."""

from __future__ import annotations

import pytest

from .ports import ported

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
STEP = "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
HANDED = "def update(out, y, optimizer):\n"
REFUSED = {
    "a function": f"{HANDED}    loss = F.cross_entropy(out.view(-1, 3), y)\n",
    "its name": "def update(out, y, criterion, optimizer):\n    loss = criterion(out, y)\n",
    "two": f"{HANDED}    loss = F.mse_loss(out, y) + 0.1 * out.abs().mean()\n",
    "its class": f"loss_fn = nn.MSELoss()\n{HANDED}    loss = loss_fn(out, y.float())\n",
    "other updates": f"meter.update(3)\n{HANDED}    loss = F.l1_loss(out, y)\n",
}
METHOD = """class Updater:
    def __init__(self, optimizer):
        self.optimizer, self.weight = optimizer, 3
        self.criterion = nn.CrossEntropyLoss()
    def update(self, out, y):
        loss = self.criterion(out, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""
KEPT = {
    "a network that is handed in": "def update(net, x, y, optimizer):\n"
    "    loss = F.mse_loss(net(x), y)\n",
    "a method of unknown things": "def update(agent, x, optimizer):\n"
    "    loss = agent.policy(x).mean()\n",
    "a weight of an outer name": "w = nn.Parameter(torch.ones(2))\n"
    "def update(x, optimizer):\n    loss = (w * x).sum()\n",
    "a weight of an object": "def update(self, x, optimizer):\n    loss = (self.w * x).sum()\n",
    "what an optimizer gets": "def update(x):\n    optimizer = torch.optim.SGD([x], lr=0.1)\n"
    "    loss = x.square().sum()\n",
}


def refused(script: str) -> list[str]:
    edits = ported(HEAD + script).edits
    return [one.reason for one in edits if one.kind == "refused" and "no network" in one.reason]


@pytest.mark.parametrize("script", [*(one + STEP for one in REFUSED.values()), METHOD])
def test_a_loss_without_a_network_in_sight_is_refused_by_its_line(script: str) -> None:
    (reason,) = refused(script)
    assert reason.startswith("no network is in sight that `out` comes from")


@pytest.mark.parametrize("script", KEPT.values(), ids=KEPT)
def test_a_loss_that_may_run_a_network_is_not(script: str) -> None:
    assert not refused(script + STEP)


def test_a_function_whose_caller_is_in_sight_says_where() -> None:
    script = REFUSED["a function"] + STEP
    script += "net = nn.Linear(4, 3)\nupdate(net(torch.ones(2, 4)), torch.ones(2), None)\n"
    assert not refused(script)
    assert "where this function is called" in ported(HEAD + script).text
