"""Clips of one network of several that an optimizer moves, and what is read of saved states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import port_text
from mpcore_port.targets import Options

from .ports import TARGET, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

PARTS = """import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
torch.manual_seed(0)
def get_optimizer(name, params, lr):
    made = {"sgd": torch.optim.SGD}
    return made[name](params, lr=lr)
class Doubled(nn.Module):
    def __init__(self, into, out):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(float(into * out)).reshape(out, into) / 7)
    def forward(self, x):
        return 2 * x @ self.weight.t()
def fit():
    backbone, head = Doubled(3, 4), Doubled(4, 2)
    params = [{"params": [*backbone.parameters()] + list(head.parameters())}]
    optimizer = get_optimizer("sgd", params, 0.01)
    backbone.train()
    head.train()
    losses = []
    for number in range(3):
        x = torch.ones(2, 3) * (number + 1)
        loss = head(backbone(x)).pow(2).mean()
        loss.backward()
        clip_grad_norm_(backbone.parameters(), max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
made = fit()
"""

RATE = """import torch
from torch import nn
net = nn.Linear(2, 1)
optimizer = torch.optim.Adam(net.parameters(), lr=0.25)
made = [optimizer.state_dict()["param_groups"][0]["lr"], len(optimizer.state_dict()[
        "param_groups"])]
"""

OWN = """import torch
class Norms:
    def __init__(self):
        self.held = 0
    def state_dict(self):
        return {"held": 3}
    def load_state_dict(self, state, device):
        self.held = state["held"] + len(device.type) * 0
one = Norms()
one.load_state_dict(one.state_dict(), torch.device("cpu"))
made = [one.held]
"""


def test_clip_of_one_network_of_two_that_an_optimizer_moves(tmp_path: Path) -> None:
    assert "clip_grad_norm_" in beside(PARTS, tmp_path).text


def test_clip_of_all_that_an_unknown_maker_is_given_keeps_its_step() -> None:
    script = PARTS.replace(" + list(head.parameters())", "").replace(
        "head(backbone(x))", "backbone(x)"
    )
    assert "clip_by_global_norm" in ported(script).text


@pytest.mark.parametrize("script", [RATE, OWN], ids=["rate", "own state"])
def test_states_are_read_and_loaded_as_in_torch(script: str, tmp_path: Path) -> None:
    beside(script, tmp_path)


def test_state_of_a_grad_scalar_is_that_of_a_scaler() -> None:
    script = (
        "import torch\nfrom torch.cuda.amp import GradScaler\n"
        "def save(net, optimizer, path):\n    grad_scalar = GradScaler()\n"
        "    torch.save({'optimizer': optimizer.state_dict(),\n"
        "                'grad_scalar': grad_scalar.state_dict()}, path)\n"
    )
    found = port_text(script, TARGET, Options())
    assert "scaler-state-lost" not in repr(found)


HANDED_IN = """import torch
from torch import nn
def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    nn.utils.clip_grad_norm_({clipped}, 1.0)
    optimizer.step()
    return loss.item()
"""
MADE = """import torch
from torch import nn
def main():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD({moved}.parameters(), lr=0.1)
    step(model, optimizer, torch.ones(1, 2))
"""


def _wider(script: str) -> list[str]:
    return [one.effect for one in ported(script).edits if "the norm is another" in one.effect]


@pytest.mark.parametrize("clipped", ["model.parameters()", "optimizer.param_groups[0]['params']"])
def test_a_clip_beside_an_optimizer_of_elsewhere_is_said(clipped: str) -> None:
    (told,) = _wider(HANDED_IN.format(clipped=clipped))
    assert clipped in told


def test_a_clip_of_what_its_optimizer_is_made_of_is_not() -> None:
    made = MADE.format(moved="model") + HANDED_IN.format(clipped="model.parameters()")
    assert not _wider(made)
