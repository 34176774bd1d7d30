"""What scripts ask networks for: buffers, names of classes, what did not fit when they load."""

from __future__ import annotations

import pytest

import mpcore_port_runtime as port

from .ports import beside, ported

HEAD = """import copy
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)])
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(1))
    def forward(self, x):
        x = self.bn(self.conv(x)).mean((2, 3))
        for block in self.blocks:
            x = block(x)
        return x * self.scale
def build(value):
    net = Net()
    for p in net.parameters():
        nn.init.constant_(p, value)
    return net
net, other = build(0.1), build(0.3)
x = torch.cos(torch.arange(384.0)).view(2, 3, 8, 8)
made = []
"""
STEPS = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(2):
    optimizer.zero_grad()
    loss = (net(x) ** 2).sum() + net(x).sum()
    loss.backward()
    optimizer.step()
    made.append(loss)
"""
BUFFERS = {
    "copied": (
        "for b, e in zip(net.buffers(), other.buffers()):\n    e.copy_(b)\n",
        "for b, e in zip(net.buffers(), other.buffers()):\n    e.data.copy_(b.data)\n",
    ),
    "by name": (
        "held = dict(other.named_buffers())\nfor name, b in net.named_buffers():\n"
        "    held[name].copy_(b)\n",
    ),
    "averaged": (
        "for b, e in zip(net.buffers(), other.buffers()):\n    if b.dtype.is_floating_point:\n"
        "        e.data.mul_(0.5).add_(b.data, alpha=0.5)\n",
        "for b, e in zip(net.buffers(), other.buffers()):\n    if b.dtype == torch.float32:\n"
        "        e.data = b.data.clone()\n",
    ),
    "as keys": (
        "keys = [k for k, _ in other.named_buffers()]\nmine, own = net.state_dict(), "
        "other.state_dict()\nfor k in keys:\n    own[k].copy_(mine[k])\n",
    ),
}
KEPT = "made += [other.bn.running_mean, other.bn.running_var, other.count]\n"
CASES = [(name, code) for name, codes in BUFFERS.items() for code in codes]


@pytest.mark.parametrize(("name", "code"), CASES)
def test_buffers_are_statistics_too(name: str, code: str, tmp_path: object) -> None:
    beside(HEAD + STEPS + code + KEPT, tmp_path)  # type: ignore[arg-type]


def test_what_does_not_fit_is_told(tmp_path: object) -> None:
    script = """
part = {k: v for k, v in net.state_dict().items() if "blocks" not in k}
message = other.load_state_dict(part, strict=False)
made += [len(message.missing_keys), "blocks.0.bias" in message.missing_keys]
names = {f"blocks.{i}.{n}" for i in (0, 1) for n in ("weight", "bias")}
made.append(set(message.missing_keys) == names)
missing, unexpected = other.load_state_dict({"none": x, **net.state_dict()}, strict=False)
made += [missing == [], unexpected[0] == "none"]
made.append(str(net.load_state_dict(net.state_dict()))[:4] == "<All")
"""
    beside(HEAD + script, tmp_path)  # type: ignore[arg-type]


def test_classes_have_torchs_names(tmp_path: object) -> None:
    script = """
def start(m):
    classname = m.__class__.__name__
    if classname.find("Linear") != -1:
        m.weight.data.fill_(0.5)
    elif type(m).__name__ == "Conv2d":
        m.weight.data.fill_(0.25)
    made.append(classname in ("Linear", "ModuleList"))
net.apply(start)
made += [net.blocks[0].weight, net.conv.weight, net.__class__.__name__ == "Net"]
made += [m._get_name() == "Linear" for m in net.modules()]
"""
    beside(HEAD + script, tmp_path)  # type: ignore[arg-type]


def test_names_that_both_have_stay() -> None:
    found = ported(HEAD + 'made.append("Conv" in net.conv.__class__.__name__)\n')
    assert "class_name" not in found.text
    assert port.class_name(3) == "int"


def test_classes_are_found_among_types(tmp_path: object) -> None:
    script = """
types = [type(m) for m in net.modules()]
made += [nn.Linear in types, nn.GELU in types, types.index(nn.BatchNorm2d)]
made += [len(types) - 1 - types[::-1].index(nn.Linear), types.count(nn.Linear)]
"""
    beside(HEAD + script, tmp_path)  # type: ignore[arg-type]


def test_parameters_of_a_network_itself(tmp_path: object) -> None:
    script = """
made += [[n for n, _ in net.named_parameters(recurse=False)] == ["scale"]]
made += [[n for n, _ in net.bn.named_parameters("b")] == ["b.weight", "b.bias"]]
made += [len(list(net.parameters(recurse=False))), "x.scale" in net.state_dict(prefix="x.")]
made += list(net.buffers(recurse=False))
"""
    beside(HEAD + script, tmp_path)  # type: ignore[arg-type]
