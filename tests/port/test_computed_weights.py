"""Weights that are computed of others, weight_norm and spectral_norm: scripts beside torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mindspore as ms
import pytest
from mindspore import nn

import mpcore_port_runtime as port
from mpcore.errors import BackendError

from .ports import beside

if TYPE_CHECKING:
    from pathlib import Path

# torch's own old way, which scripts still take.
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")

START = """import torch
from torch import nn
from torch.nn.utils import weight_norm, remove_weight_norm, spectral_norm
from torch.nn.utils import parametrizations
def fill(net):
    state = {}
    for number, (name, value) in enumerate(sorted(net.state_dict().items())):
        wave = torch.sin(torch.arange(value.numel()) * 0.7 + number).view(value.shape)
        state[name] = wave * 0.5 + (0.75 if name.endswith("_g") else 0.0)
    net.load_state_dict(state)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        LAYERS
    def forward(self, x):
        return self.b(torch.relu(self.a(x)))
net = Net()
fill(net)
"""
TRAIN = """
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
made = []
for number in range(3):
    x = torch.cos(torch.arange(SIZE) * 0.3 + number).view(SHAPE)
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    made.append(loss.item())
net.eval()
made.append(net(x).sum().item())
made += [float(v.sum()) for _, v in sorted(net.state_dict().items())]
made += [len(name) for name in sorted(net.state_dict())]
made += [len(name) for name, _ in net.named_parameters()]
made += [int("Conv" in net.b.__class__.__name__)]
"""
PAIRS = {
    "conv1d": (
        "self.a = WN(nn.Conv1d(2, 4, 3, padding=1))\n        "
        "self.b = WN(nn.ConvTranspose1d(4, 2, 4, 2, 1))",
        (2, 2, 6),
    ),
    "conv2d": (
        "self.a = WN(nn.Conv2d(2, 4, 3, bias=False))\n        self.b = nn.Conv2d(4, 1, 1)\n"
        "        self.b = WN(self.b)",
        (2, 2, 5, 5),
    ),
    "linear": ("self.a = WN(nn.Linear(4, 3))\n        self.b = WN(nn.Linear(3, 2))", (2, 4)),
}
WAYS = {
    "old": "weight_norm",
    "all": "(lambda m: weight_norm(m, dim=None))",
    "name": "(lambda m: weight_norm(m, name='weight', dim=1))",
    "new": "parametrizations.weight_norm",
    "spectral": "spectral_norm",
    "spectral2": "(lambda m: spectral_norm(m, n_power_iterations=2, eps=1e-6))",
    "new spectral": "parametrizations.spectral_norm",
}


def _script(layers: str, way: str) -> str:
    text, shape = PAIRS[layers]
    size = 1
    for axis in shape:
        size *= axis
    made = (START + TRAIN).replace("LAYERS", text.replace("WN", WAYS[way]))
    return made.replace("SIZE", str(size)).replace("SHAPE", str(shape))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layers", PAIRS)
def test_layers_train_as_in_torch(layers: str, way: str, tmp_path: Path) -> None:
    found = beside(_script(layers, way), tmp_path)
    assert "refused" not in found.text


REMOVED = (
    START.replace(
        "LAYERS",
        "self.a = weight_norm(nn.Conv1d(2, 4, 3))\n"
        "        self.b = weight_norm(nn.Conv1d(4, 1, 1))",
    )
    + """
def init_weights(m):
    if m.__class__.__name__.find("Conv") != -1:
        m.weight.data.normal_(0.0, 0.01)
net.apply(init_weights)
x = torch.cos(torch.arange(12.0)).view(1, 2, 6)
before = net(x).sum().item()
for layer in (net.a, net.b):
    remove_weight_norm(layer)
made = [before, net(x).sum().item(), len(list(net.parameters())), len(net.state_dict())]
made += [len(name) for name in net.state_dict()]
net.a = nn.utils.parametrizations.weight_norm(net.a)
nn.utils.parametrize.remove_parametrizations(net.a, "weight")
made += [net(x).sum().item(), net.a.weight.sum().item()]
"""
)


def test_what_is_removed_leaves_the_weight_of_now(tmp_path: Path) -> None:
    beside(REMOVED, tmp_path)


MIXED = (
    START.replace(
        "LAYERS",
        "self.a = weight_norm(nn.Linear(4, 8))\n        self.b = spectral_norm(nn.Linear(8, 1))",
    )
    + """
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
made = []
for number in range(3):
    x = torch.cos(torch.arange(8.0) + number).view(2, 4)
    opt.zero_grad()
    with torch.autocast("cpu", enabled=False):
        loss = net(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    made.append(loss.item())
"""
)


def test_a_step_with_a_scaler_moves_them(tmp_path: Path) -> None:
    beside(MIXED, tmp_path)


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(BackendError, match="no Parameter 'kernel'; it has weight, bias"):
        port.weight_norm(nn.Dense(2, 2), "kernel")
    with pytest.raises(BackendError, match="recurrent layer is not ported"):
        port.weight_norm(nn.LSTM(2, 2), "weight_hh_l0")
    with pytest.raises(ValueError, match="not found in Dense"):
        port.remove_weight_norm(nn.Dense(2, 2))
    with pytest.raises(BackendError, match="no parametrization"):
        port.remove_parametrizations(port.weight_norm(nn.Dense(2, 2)), "weight")
    once = port.spectral_norm(nn.Dense(2, 2))
    with pytest.raises(BackendError, match="no Parameter 'weight'; it has bias, weight_orig"):
        port.weight_norm(once)


def test_a_layer_of_mindspores_own_keeps_its_axes() -> None:
    layer = nn.Conv1d(2, 3, 3, has_bias=True)
    x = ms.ops.randn(1, 2, 5)
    before = layer(x)
    port.weight_norm(layer)
    assert tuple(layer.weight_v.shape) == (3, 2, 3)
    assert float((layer(x) - before).abs().max()) < 1e-6
