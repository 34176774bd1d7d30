"""Padding beside torch: sizes below zero, which MindSpore's own gets wrong, and three axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import port_text
from mpcore_port.targets import Options

from .ports import TARGET, beside

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """import torch
from torch import nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.arange(240.0).reshape(2, 4, 5, 6) / 100)
        self.pad = LAYER
    def forward(self, less, more):
        x = self.w
        return CODE
net = Net()
out = net(-2, 3)
(out * torch.linspace(0.5, 1.5, out.numel()).reshape(out.shape)).sum().backward()
made = [out.detach(), net.w.grad]
"""
CODES = (
    "F.pad(x, (1, -2, 0, 3))",
    "F.pad(x, [less, more])",
    "F.pad(x, (less, more, more, less), value=1.5)",
    "F.pad(x, (less, 1, more, less), mode='reflect')",
    "F.pad(x, (1, less, 2, 0), 'replicate')",
    "F.pad(x, (1, 2, 0, more), 'circular')",
    "F.pad(x, pad=(1, 1, 1, 0, 2, 1), mode='reflect')",
    "F.pad(x, (more, less, 1, 1, -1, 2, 1, 0))",
    "F.pad(x, (-1,) * 4)",
    "F.pad(x, (0, 0, 0, 0))",
    "torch.nn.functional.pad(input=x, pad=(less, less))",
)
LAYERS = (
    "nn.ZeroPad2d((0, -2, 0, -3))",
    "nn.ZeroPad2d(-1)",
    "nn.ZeroPad2d((1, 2, 0, 1))",
    "nn.ConstantPad2d((1, -1, 2, -2), 1.5)",
    "nn.ConstantPad1d(2, 0.5)",
    "nn.ReflectionPad2d((1, -1, 2, 0))",
    "nn.ReflectionPad3d((1, -1, 2, 0, 1, 2))",
    "nn.ReplicationPad2d((1, -1, 2, 3))",
    "nn.CircularPad2d((1, 2, 3, 0))",
    "nn.Sequential(nn.ReplicationPad2d(1), nn.ZeroPad2d((0, -1, 0, -1)))",
)


@pytest.mark.parametrize("code", CODES)
def test_sizes_of_the_function(code: str, tmp_path: Path) -> None:
    script = SCRIPT.replace("CODE", code).replace("LAYER", "None")
    assert beside(script, tmp_path).said.kind != "stops"


@pytest.mark.parametrize("layer", LAYERS)
def test_sizes_of_layers(layer: str, tmp_path: Path) -> None:
    script = SCRIPT.replace("CODE", "self.pad(x)").replace("LAYER", layer)
    assert beside(script, tmp_path).said.kind != "stops"


def test_a_port_has_mindspores_own_where_no_size_is_below_zero() -> None:
    script = SCRIPT.replace("CODE", "F.pad(x, (1, 0), 'reflect')").replace(
        "LAYER", "nn.ZeroPad2d(1)"
    )
    result = port_text(script, TARGET)
    assert "ops.pad(x, (1, 0), 'reflect')" in result.text
    assert "nn.ZeroPad2d(1)" in result.text


@pytest.mark.parametrize(
    ("code", "own", "kind"),
    [
        ("F.pad(x, (less, more))", True, "unproven"),
        ("F.pad(x, (1, -1))", False, "exact"),
        ("F.pad(x, (1, 1), 'circular')", False, "exact"),
    ],
)
def test_a_plain_port_says_what_is_not_written_out(code: str, own: bool, kind: str) -> None:
    script = SCRIPT.replace("CODE", code).replace("LAYER", "None")
    result = port_text(script, TARGET, Options(plain=True))
    assert ("ops.pad(" in result.text) is own
    kinds = {edit.kind for edit in result.edits if edit.rule == "native"}
    assert ("unproven" in kinds) is (kind == "unproven")
