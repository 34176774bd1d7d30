"""Networks that run while they are made, and classes of networks that are asked for by a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.port.ports import FILLED, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

STRIDES = (
    FILLED
    + """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
    def forward(self, x):
        out = [self.conv(one) for one in x]
        if self.training:
            return out
        return torch.cat([one.flatten(1) for one in out], 1)
class Net(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)
        self.bn = nn.BatchNorm2d(4)
        self.head = Head()
        filled(self)
        dummy = torch.zeros(1, 3, size, size)
        self.stride = torch.tensor([size / x.shape[-2] for x in self.forward(dummy)])
        with torch.no_grad():
            self.flat = self._features(torch.ones(1, 3, size, size)).view(-1).shape[0]
    def _features(self, x):
        return self.bn(self.conv(x))
    def forward(self, x):
        x = self._features(x)
        return self.head([x, x[:, :, ::2, ::2]])
class Around(nn.Module):
    def __init__(self):
        super().__init__()
        net = Net()
        run = lambda x: net(x)
        self.net = net
        self.n = len(run(torch.zeros(2, 3, 16, 16)))
net = Around()
made += [net.net.stride, net.n, net.net.flat, net.net.bn.running_var, net.net.bn.running_mean]
net.eval()
made += [net.net(torch.ones(1, 3, 16, 16)).detach()]
"""
)

ASKED = """import sys
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.bn = nn.BatchNorm1d(n)
    def forward(self, x):
        return self.bn(x)
def frozen(n):
    return Net(n).eval()
KINDS = {"net": Net, "frozen": frozen}
class holder:
    pass
holder.Net = Net
def create(name):
    model = getattr(holder, name)(2)
    model.to("cpu")
    return model
def of_kind(name):
    model = KINDS[name](2)
    model = model.cpu()
    return model
x = torch.arange(6.0).view(3, 2)
made = [m(x).detach() for m in (create("Net"), of_kind("net"), of_kind("frozen"))]
"""


def test_a_network_that_runs_while_it_is_made_is_in_training_mode(tmp_path: Path) -> None:
    assert beside(STRIDES, tmp_path).text.count("port.in_training(self)") == 3


def test_a_class_that_is_asked_for_by_its_name_makes_a_network_in_training(tmp_path: Path) -> None:
    text = beside(ASKED, tmp_path).text
    assert "port.started(getattr(holder, name))(2)" in text


def test_layers_that_are_frozen_before_a_network_runs_are_said() -> None:
    head = "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n"
    body = "        super().__init__()\n        self.a = nn.Linear(2, 2).eval()\n"
    done = ported(f"{head}{body}        self.n = self.a(torch.zeros(1, 2)).shape[-1]\n")
    assert [e.kind for e in done.edits if "evaluation mode above" in e.reason] == ["unproven"]
