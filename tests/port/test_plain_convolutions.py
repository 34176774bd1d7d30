"""Plain ports convolve by MindSpore's own where it can be called with what is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import port_text
from mpcore_port.targets import Options

from .ports import TARGET, compare

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """import torch
from torch import nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.arange(144.0).reshape(2, 4, 18) / 100)
        self.conv = nn.Conv1d(LAYER)
        nn.init.constant_(self.conv.weight, 0.1)
        if self.conv.bias is not None:
            nn.init.constant_(self.conv.bias, 0.3)
    def forward(self):
        return self.conv(self.w)
net = Net()
out = net()
(out * torch.linspace(0.5, 1.5, out.numel()).reshape(out.shape)).sum().backward()
made = [out.detach(), net.w.grad]
"""
LAYERS = (
    "4, 6, 3",
    "4, 6, 3, padding=1",
    "4, 6, kernel_size=3, stride=2, padding=2, dilation=2, groups=2, bias=False",
    "4, 6, 3, 1, 1, 1, 2, True",
)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_of_one_dimension(layer: str, tmp_path: Path) -> None:
    script = SCRIPT.replace("LAYER", layer)
    found = port_text(script, TARGET, Options(plain=True))
    assert " nn.Conv1d(" in found.text
    assert any("four axes" in edit.effect for edit in found.edits if edit.kind == "changed")
    compare(script, found.text, tmp_path)


@pytest.mark.parametrize(
    "layer",
    ["4, 6, 3, padding='same'", "4, 6, 3, padding=1, padding_mode='circular'", "4, 6, (3,)"],
)
def test_what_mindspores_own_does_not_take_stays(layer: str, tmp_path: Path) -> None:
    script = SCRIPT.replace("LAYER", layer)
    found = port_text(script, TARGET, Options(plain=True))
    assert " port.Conv1d(" in found.text
    compare(script, found.text, tmp_path)


def test_a_layer_that_is_asked_for_is_what_is_asked_for() -> None:
    script = SCRIPT.replace("LAYER", "4, 6, 3") + "made += [isinstance(net.conv, nn.Conv1d)]\n"
    found = port_text(script, TARGET, Options(plain=True))
    assert " nn.Conv1d(" not in found.text


@pytest.mark.parametrize(
    ("given", "unproven"),
    [("padding=1", False), ("padding=1, padding_mode='reflect'", True)],
)
def test_the_class_of_a_layer_with_borders_of_its_own(given: str, unproven: bool) -> None:
    script = f"""from torch import nn
net = nn.Conv2d(2, 3, 3, {given})
same = type(net) == nn.Conv2d
either = net.__class__ in (nn.Conv2d, nn.Linear)
"""
    found = port_text(script, TARGET)
    named = [edit for edit in found.edits if edit.rule == "exact type"]
    assert {edit.kind for edit in named} == ({"unproven"} if unproven else set())
    assert len(named) == 2 * unproven


FUNCTION = """import torch
import torch.nn.functional as F
n = 1
x = torch.arange(400.0).reshape(2, 2, 10, 10) / 100
w = torch.arange(36.0).reshape(2, 2, 3, 3) / 50
made = [CODE]
"""


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("F.conv2d(x, w)", "exact"),
        ("F.conv2d(x, w, None, 2, (1, 2))", "exact"),
        ("F.conv2d(x, w[:, :1], bias=torch.ones(2), padding=1, groups=2)", "exact"),
        ("F.conv2d(x, w, padding=n)", "unproven"),
    ],
)
def test_the_function_of_two_dimensions(code: str, kind: str, tmp_path: Path) -> None:
    script = FUNCTION.replace("CODE", code)
    found = port_text(script, TARGET, Options(plain=True))
    assert "ops.conv2d(" in found.text
    kinds = {edit.kind for edit in found.edits if edit.rule == "native" and "F.conv2d" in edit.old}
    assert kinds == {kind}
    compare(script, found.text, tmp_path)
