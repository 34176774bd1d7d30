"""Sizes that are known when a script runs: paddings by a name, fans of weights, numpy's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.port.ports import FILLED, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

PADDED = (
    FILLED
    + """
class Basic(nn.Module):
    def __init__(self, a, b, kernel, padding=0):
        super().__init__()
        self.conv = nn.Conv2d(a, b, kernel, padding=padding, bias=False)
        self.back = nn.ConvTranspose2d(b, a, kernel, padding=padding)
        self.deep = nn.Conv3d(1, 1, (1, *kernel), padding=(0, *padding))
    def forward(self, x):
        return self.back(self.conv(x)) + self.deep(x[:, None])[:, 0]
def doubled(conv):
    made = nn.Conv2d(conv.in_channels, conv.out_channels, kernel_size=conv.kernel_size,
                     stride=conv.stride, padding=conv.padding, groups=conv.groups, bias=False)
    made.weight.data.copy_(conv.weight * 2)
    return made
net = filled(Basic(2, 3, (1, 3), (0, 1)))
x = torch.arange(24.0).view(1, 2, 3, 4) / 10
made += [net(x).detach(), doubled(net.conv)(x).detach()]
"""
)

WORDS = """import torch
y = torch.arange(24.0).view(2, 3, 4) / 7
def of(x):
    kept = [x.amax(axis=-1, keepdim=True), x.mean(axis=(1, 2), keepdim=True), x.logsumexp(axis=1)]
    return [*kept, x.sum(axis=1)]
made = [*of(y), (y * 2).std(axis=1, keepdim=True)]
"""

FANS = """import math
import torch
from torch import nn
from torch.nn.init import _calculate_correct_fan, _calculate_fan_in_and_fan_out, _no_grad_normal_
def scaled_(tensor, gain=1.0):
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return _no_grad_normal_(tensor, 0.0, math.sqrt(gain / float(fan_in)))
conv = nn.Conv2d(8, 6, (3, 5), groups=2)
scaled_(conv.weight.data)
made = [*_calculate_fan_in_and_fan_out(conv.weight), _calculate_correct_fan(conv.weight, "fan_out")]
made += [0.09 < conv.weight.std().item() < 0.17]
made += [*_calculate_fan_in_and_fan_out(nn.Linear(3, 4).weight)]
"""


def test_paddings_that_are_handed_on_have_a_number_for_each_axis(tmp_path: Path) -> None:
    beside(PADDED, tmp_path)


def test_torchs_methods_take_numpys_words(tmp_path: Path) -> None:
    beside(WORDS, tmp_path)


def test_an_arrays_words_stay_as_they_are() -> None:
    text = ported("import numpy as np\nimport torch\ndef f(x):\n    return x.std(axis=0)\n").text
    assert "x.std(axis=0)" in text


def test_fans_of_weights_are_torchs(tmp_path: Path) -> None:
    beside(FANS, tmp_path)


COUNTED = """import torch
x = torch.ones(2, 3)
sizes = x.shape
def behind(y):
    return y.shape[1:].numel()
made = [x.shape.numel(), x.size().numel(), sizes.numel(), sizes[:1].numel(), behind(x)]
"""


def test_a_shape_is_asked_how_many_elements_it_has(tmp_path: Path) -> None:
    beside(COUNTED, tmp_path)
