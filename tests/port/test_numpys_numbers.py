"""Numbers of numpy as places of a tensor, in front of one, and as what a convolution pads."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = """import math
import numpy as np
import torch
from torch import nn
x = torch.arange(24.0).reshape(4, 6)
made = []
"""
PLACES = {
    "a loop": "for i in np.random.permutation(1):\n    made.append(x[i])\n",
    "a loop of bounds": "made += [x[s : s + 2] for s in np.arange(0, 4, 2)]\n",
    "counted": "for n, s in enumerate(np.arange(0, 4, 2)):\n    made += [x[n, s:], x[s]]\n",
    "two at once": "for a, b in zip([1, 2], np.arange(2)):\n    made += [x[a, b], x[b]]\n",
    "the greatest": "k = np.argmax([1, 3, 2])\nmade += [x[k], x[:, :-k], x[k + 1, k], x[-k]]\n",
    "set": "k = np.argmax([1, 3, 2])\nx[k] = 0.0\nx[:, k:] = 1.0\nmade.append(x)\n",
    "a product": "n = np.cumprod([2, 2])[-1]\nmade.append(x[:, n:])\n",
    "a method": "m = np.array([1, 3, 2]).argmax()\nmade.append(x[m])\n",
    "of an attribute": (
        "class Data:\n    def __init__(self, x):\n        self.x, self.starts = x, np.arange(3)\n"
        "    def __getitem__(self, i):\n        s = self.starts[i]\n"
        "        return self.x[s : s + 1]\nmade += [Data(x)[0], Data(x)[2]]\n"
    ),
    "added up": (
        "n = 0\nfor p in (x, x[0]):\n    m = np.prod([1, 2])\n"
        "    made.append(x.view(-1)[n : n + m])\n    n += m\n"
    ),
    "handed on": (
        "def crop(x, start):\n    return x[:, start : start + 2]\n"
        "made.append(crop(x, np.argmin([3, 2])))\n"
    ),
    "a tensor of one number": "r = torch.randint(0, 1, (1,))\nmade.append(x[r : r + 2])\n",
}


@pytest.mark.parametrize("body", PLACES.values(), ids=PLACES)
def test_a_tensor_is_indexed_by_numpys_numbers(body, tmp_path):
    beside(HEAD + body, tmp_path)


def test_words_of_numpy_stay_keys(tmp_path):
    body = 'for c in np.unique(["b", "a"]):\n    made.append({"a": x, "b": x * 2}[c])\n'
    beside(HEAD + body + "for i in range(2):\n    made.append(x[i : i + 1])\n", tmp_path)
    assert "int(" not in ported(HEAD + "for i in range(2):\n    x[i : i + 1]\n").text


LEFT = {
    "a root": "np.sqrt(3.0) * x",
    "a type": "np.float32(2) + x",
    "in front of a division": "np.log(2) / (x + 1)",
    "computed": "(np.sqrt(2) / 2) * x",
    "negative": "-np.sqrt(2) * x",
    "of a size": "np.sqrt(x.size(1)) * x",
    "of a network": "Scaled(6)(x).detach()",
}
SCALED = """
class Scaled(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale, self.d = np.sqrt(d), d
        self.root = np.sqrt(d)
        self.w = nn.Parameter(torch.ones(6))
    def forward(self, x):
        return self.root * x + x / np.sqrt(self.d) + np.sqrt(2) * self.w
"""


@pytest.mark.parametrize("code", LEFT.values(), ids=LEFT)
def test_a_number_in_front_of_a_tensor_gives_a_tensor(code, tmp_path):
    beside(f"{HEAD}{SCALED}made.append({code})\n", tmp_path)


def test_arrays_and_pythons_numbers_stay_in_front(tmp_path):
    body = "made += [math.sqrt(2) * x, torch.from_numpy(np.sqrt(2.0) * np.arange(3.0))]\n"
    assert "float(" not in beside(HEAD + body, tmp_path).text


def test_numpy_leaves_a_product_to_the_tensor_whatever_it_got(tmp_path):
    script = "def scaled(d):\n    return np.sqrt(d) * torch.ones(2)\n"
    beside(HEAD + script + "made += [scaled(3.0), scaled(np.float64(2.0))]\n", tmp_path)


PADDED = """
class Block(nn.Module):
    def __init__(self, k, padding=0):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, kernel_size=k, padding=padding, bias=False)
    def forward(self, x):
        return self.conv(x)
def layers(kernel):
    padding = tuple(k // 2 for k in kernel)
    return [nn.Conv2d(1, 1, kernel, 1, padding, bias=False)]
line = [1]
nets = [Block((1, 3), (0, 1)), Block(3, 1), Block(3), *layers((3, 5))]
nets += [nn.Conv2d(1, 1, 3, padding=(1,) * 2, bias=False)]
nets += [nn.ConvTranspose2d(1, 1, 3, padding=(1,) * 2, bias=False)]
inputs = [torch.linspace(-1.0, 1.0, 49).view(1, 1, 7, 7)] * len(nets)
nets += [nn.Conv1d(1, 1, 3, padding=line, bias=False)]
nets += [nn.Conv3d(1, 1, 3, padding=(1,) * 3, bias=False)]
inputs += [inputs[0].view(1, 1, 49), inputs[0].view(1, 1, 1, 7, 7)]
for net, x in zip(nets, inputs):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
    made.append(net(x).detach())
"""


def test_a_name_may_hold_what_each_axis_is_padded_by(tmp_path):
    assert "port.sides(padding)" in beside(HEAD + PADDED, tmp_path).text
    plain = ported(HEAD + "pad = 3 // 2\nconv = nn.Conv2d(1, 1, 3, padding=pad)\n").text
    assert "sides" not in plain
