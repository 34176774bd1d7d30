"""Copies of networks that are halved to be saved, and statistics that stand still."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import beside, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

HALVES = """import torch
from copy import deepcopy
from torch import nn
made = []
net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.1, p.numel()).view(p.shape))
def inner(model):
    return model.module if hasattr(model, "module") else model
class Trainer:
    def __init__(self, model):
        self.model = model
        self.ema = deepcopy(model)
    def kept(self):
        return {
            "model": deepcopy(inner(self.model)).half(),
            "ema": deepcopy(self.ema).half().eval(),
            "state": deepcopy(net).half().state_dict(),
        }
found = Trainer(net).kept()
made += [p.detach().float() for p in found["model"].parameters()]
made += [p.detach().float() for p in found["ema"].parameters()]
made += [found["state"]["0.weight"].float(), next(net.parameters()).detach()]
again = deepcopy(net)
made += [again.float().state_dict()["0.bias"], deepcopy(net).float().eval()(torch.ones(2, 2))]
"""


def test_copies_that_are_kept_are_rounded(tmp_path: Path) -> None:
    found = beside(HALVES, tmp_path)
    assert not [one for one in found.edits if one.kind == "refused"]
    changed = [one for one in found.edits if one.kind == "changed"]
    assert len([one for one in changed if "port.rounded" in one.new]) == 3
    assert all("float32" in one.effect for one in changed if "port.rounded" in one.new)


@pytest.mark.parametrize("code", ["half = deepcopy(net).half()", "deepcopy(net).half()(x)"])
def test_copies_that_run_in_half_are_cast(code: str) -> None:
    script = f"import torch\nfrom copy import deepcopy\nnet = torch.nn.Linear(2, 2)\n{code}\n"
    cast = [one for one in ported(script).edits if "port.to(deepcopy(net), ms." in one.new]
    assert [(one.line, one.kind) for one in cast] == [(4, "changed")]


STILL = """import torch
from torch import nn
made = []
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Unflatten(1, (4, 1, 1)))
net.append(nn.BatchNorm2d(4))
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.1, p.numel()).view(p.shape))
for module in net.modules():
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
        module.track_running_stats = False
net.train()
for step in range(3):
    made.append(net(torch.linspace(-1.0, step + 1.0, 24).view(6, 4)).detach())
made += [net[1].running_mean, net[1].running_var, net[3].running_mean, net[3].running_var]
net.eval()
made.append(net(torch.ones(2, 4)).detach())
net[1].track_running_stats = True
net.train()
net(torch.linspace(-1.0, 2.0, 24).view(6, 4))
made += [net[1].running_mean, net[3].running_mean]
"""


def test_statistics_that_are_not_tracked_stand_still(tmp_path: Path) -> None:
    beside(STILL, tmp_path)


COMPILED = """import torch
net = torch.compile(torch.nn.Linear(2, 2))
state = net._orig_mod.state_dict()
made = [tuple(state["weight"].shape), len(list(net._orig_mod.parameters()))]
"""


def test_a_network_that_was_compiled_is_itself(tmp_path: Path) -> None:
    found = ported(COMPILED)  # torch's own compiler warns where it is imported
    assert loaded(found.text, tmp_path)["made"] == [(2, 2), 2]
