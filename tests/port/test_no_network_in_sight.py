"""Losses of functions that nobody calls in a file, and that run no network themselves."""

from __future__ import annotations

import runpy
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from .ports import ported

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
STEP = "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
HANDED = "def update(out, y, optimizer):\n"
HANDED_IN = {
    "a function": f"{HANDED}    loss = F.cross_entropy(out.view(-1, 3), y)\n",
    "its name": "def update(out, y, criterion, optimizer):\n    loss = criterion(out, y)\n",
    "two": f"{HANDED}    loss = F.mse_loss(out, y) + 0.1 * out.abs().mean()\n",
    "its class": f"loss_fn = nn.MSELoss()\n{HANDED}    loss = loss_fn(out, y.float())\n",
    "other updates": f"meter = dict()\nmeter.update(a=3)\n{HANDED}    loss = F.l1_loss(out, y)\n",
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


CALLED = """
net = nn.Linear(4, 3)
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
made, rest, sgd = [], [nn.CrossEntropyLoss()], torch.optim.SGD(net.parameters(), lr=0.1)
Handed = globals().get("Updater", lambda optimizer: None)
handed = Handed(sgd)
for by in (1.0, 2.0, 3.0):
    out, y = net(torch.linspace(-by, 1.0, 8).view(2, 4)), torch.tensor(FORM).view(SHAPE)
    if handed is None:
        update(out, y, *rest[:MORE], sgd)
    else:
        handed.update(out, y)
    made.append(out.detach())
made += [p.detach() for p in net.parameters()]
"""
"""What another file does with such a function."""


def caller(script: str) -> str:
    """Return what calls a function of a script with what a network of its own gives."""
    numbers = "cross_entropy" not in script and "criterion" not in script
    form = ("[[0.5, 1, 2], [1, 2, 0]]", "2, 3") if numbers else ("[0, 2]", "2")
    more = "1" if "criterion, optimizer" in script else "0"
    made = CALLED.replace("FORM", form[0]).replace("SHAPE", form[1]).replace("MORE", more)
    return "import torch\nfrom torch import nn\nfrom update import *\n" + made


def said(script: str) -> list[str]:
    edits = ported(HEAD + script).edits
    return [one.reason for one in edits if one.kind == "unproven" and "no network" in one.reason]


@pytest.mark.parametrize("script", [*(one + STEP for one in HANDED_IN.values()), METHOD])
def test_a_loss_of_another_files_network_goes_through_what_is_recorded(
    script: str, tmp_path: Path
) -> None:
    (reason,) = said(script)
    assert reason.startswith("no network is in sight that `out` comes from: port.record() has")
    made = []
    for side, port in (("torch", False), ("port", True)):
        for name, text in (("update", HEAD + script), ("main", caller(script))):
            (tmp_path / side).mkdir(exist_ok=True)
            (tmp_path / side / f"{name}.py").write_text(ported(text).text if port else text)
        made.append(run_beside(tmp_path / side))
    for own, other in zip(*made, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


def run_beside(folder: Path) -> list[np.ndarray]:
    """Return what ``main`` of a folder leaves behind, as arrays; its neighbours are forgotten."""
    sys.path.insert(0, str(folder))
    try:
        made = runpy.run_path(str(folder / "main.py"), run_name="main")["made"]
        return [one.numpy() if hasattr(one, "numpy") else one.asnumpy() for one in made]
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("update", None)


@pytest.mark.parametrize("script", KEPT.values(), ids=KEPT)
def test_a_loss_that_may_run_a_network_is_not(script: str) -> None:
    assert not said(script + STEP)


def test_a_function_whose_caller_is_in_sight_says_where() -> None:
    script = HANDED_IN["a function"] + STEP
    script += "net = nn.Linear(4, 3)\nupdate(net(torch.ones(2, 4)), torch.ones(2), None)\n"
    assert not said(script)
    reasons = [one.reason for one in ported(HEAD + script).edits]
    assert any("where this function is called: port.record()" in reason for reason in reasons)
