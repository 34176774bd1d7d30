"""Every second row of a middle axis, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Tensor

import mpcore_port_runtime as port

from .ports import beside, ported

SCRIPT = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
made = []
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.sin(torch.arange(96.0)).view(2, 3, 4, 4))
    def forward(self, x, s=2):
        x = x * self.weight
        return {part}
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(2):
    x = torch.cos(torch.arange(96.0) * (i + 1)).view(2, 3, 4, 4)
    optimizer.zero_grad()
    loss = (net(x) ** 2).mean()
    loss.backward()
    optimizer.step()
    made.append(loss)
made += [net.weight]
"""
PARTS = {
    "a shortcut": "F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1))",
    "checkers": "torch.cat([x[:, :, 0::2, 1::2], x[:, :, 1::2, 0::2]], 1)",
    "channels": "x[:, ::2]",
    "a named step": "x[:, 1::s, :, -1]",
    "an axis more": "x[:, None, ::2, 1:]",
    "behind an ellipsis": "x[..., ::2, :]",
    "behind a number": "x[0, ::2]",
    "the last": "x[..., ::2]",
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_step_on_a_middle_axis_has_a_gradient(part, tmp_path):
    found = beside(SCRIPT.replace("{part}", part), tmp_path)
    assert ("port.strided(x)" in found.text) == (part != "x[..., ::2]")


@pytest.mark.parametrize("line", ["x[:, ::2] = 1", "a[:, ::2] + 1", "x[::2]", "x[:, 1:2:1]"])
def test_other_steps_stay(line):
    script = (
        f"import numpy as np\nimport torch\nx = torch.ones(2, 4, 2)\na = np.ones((2, 4))\n{line}\n"
    )
    assert "strided" not in ported(script).text


def test_what_is_no_tensor_does_it_itself():
    rows = np.arange(12).reshape(3, 4)
    assert port.strided(rows)[:, ::2].tolist() == [[0, 2], [4, 6], [8, 10]]
    assert port.strided([1, 2, 3])[::2] == [1, 3]
    assert port.strided(Tensor(rows))[1].asnumpy().tolist() == [4, 5, 6, 7]
