"""Values and gradients where a curve bends, at 0 and at bounds, and far away, beside torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import port_text
from mpcore_port.targets import Options

from .ports import TARGET, beside, compare

if TYPE_CHECKING:
    from pathlib import Path

POINTS = (
    "[0.0, -0.0, 1.0, -2.0, 6.0, 3.0, -3.0, 7.0]",
    "[-20.0, -50.0, -89.0, -100.0, 20.0, 50.0, 89.0, 100.0]",
)
ACTIVATIONS = (
    "F.relu(x)",
    "F.relu6(x)",
    "F.relu6(F.relu6(x))",
    "F.leaky_relu(x, 0.2)",
    "F.elu(x)",
    "F.selu(x)",
    "F.silu(x)",
    "F.mish(x)",
    "F.gelu(x)",
    "F.hardswish(x)",
    "F.hardtanh(x)",
    "F.softplus(x)",
    "F.logsigmoid(x)",
    "nn.LeakyReLU(0.2)(x)",
    "nn.LeakyReLU(0.1, inplace=True)(x * 1)",
    "nn.ReLU6()(x)",
    "nn.SELU()(x)",
    "nn.Mish()(x)",
    "nn.Hardswish()(x)",
    "nn.LogSigmoid()(x)",
    "nn.CELU()(x)",
    "{'act': nn.LeakyReLU}['act'](0.2)(x)",
    "getattr(F, name)(x)",
    "x.abs()",
    "x.clamp(min=0)",
    "torch.clamp(x, 0, 6)",
)
LOSSES = (
    "F.binary_cross_entropy_with_logits(x, y)",
    "F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor(2.0), reduction='none')",
    "nn.BCEWithLogitsLoss()(x, y)",
    "F.multilabel_soft_margin_loss(x[None], y[None])",
    "F.smooth_l1_loss(x, z)",
    "F.l1_loss(x, z)",
    "F.huber_loss(x, z)",
    "F.normalize(x * z, dim=0, eps=1e-3)",
    "F.normalize(x, dim=0)",
    "(x * z).std()",
    "x.std()",
    "(x * z).norm()",
)
SCRIPT = """import torch
from torch import nn
import torch.nn.functional as F
name = "leaky_relu"
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(POINTS))
    def forward(self, y, z):
        x = self.w
        return CODE
net = Net()
y = torch.tensor([0.2, 0.5, 0.9, 0.1, 0.0, 1.0, 0.3, 0.7])
out = net(y, torch.zeros(8))
weights = torch.linspace(0.5, 1.5, out.numel()).reshape(out.shape)
loss = (out * weights).sum()
loss.backward()
made = [out.detach(), net.w.grad]
"""


@pytest.mark.parametrize("points", POINTS)
@pytest.mark.parametrize("code", [*ACTIVATIONS, *LOSSES])
def test_slopes_are_torchs_where_curves_bend(tmp_path, code, points):
    found = beside(SCRIPT.replace("POINTS", points).replace("CODE", code), tmp_path)
    assert found.said.kind != "stops"


PLAIN = """import torch
import torch.nn.functional as F
from torch import nn
net = nn.Sequential(nn.LeakyReLU(0.2), nn.LeakyReLU(), nn.LeakyReLU(negative_slope=0.3), nn.ReLU6())
more = nn.Sequential(nn.Hardtanh(-2.0, 2.0), nn.Hardswish(), nn.Mish(), nn.LogSigmoid())
def shown(x):
    made = F.leaky_relu(x, 0.2) + F.leaky_relu(x) + F.leaky_relu(x, negative_slope=0.3)
    return made + F.relu6(x) + F.hardswish(x) + F.hardtanh(x) + F.mish(x) + F.logsigmoid(x)
x = torch.tensor([-5.0, -1.5, -0.3, 0.4, 2.5, 7.0])
made = [shown(x), net(x), more(x)]
"""


def test_plain_ports_have_mindspores_own_and_say_so(tmp_path: Path) -> None:
    found = port_text(PLAIN, TARGET, Options(plain=True))
    assert "mpcore" not in found.text
    compare(PLAIN, found.text, tmp_path)
    said = [one.effect for one in found.edits if one.kind == "changed"]
    assert any("slopes" in effect for effect in said)
