"""``x.resize_as_(y).copy_(y)``, and networks of nobody knows whom in half precision."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

import mpcore_port_runtime as port

from .ports import compare, ported

HEAD = """import torch
from torch import nn
from torch.autograd import Variable
made = []
net = nn.Linear(3, 2)
for p in net.parameters():
    p.data.fill_(0.5)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batches = [torch.cos(torch.arange(3.0 * n)).view(n, 3) for n in (4, 2)]
"""
FILLED = """
def train():
    input = torch.FloatTensor(4, 3)
    label = torch.LongTensor(4)
    for batch in batches:
        input.{resize}.copy_(batch)
        label.resize_(batch.size(0)).fill_(1)
        optimizer.zero_grad()
        inputv = Variable(input)
        loss = (net(inputv) ** 2).mean()
        loss.backward()
        optimizer.step()
        made.extend([loss, inputv])
train()
made += [*net.parameters()]
"""


@pytest.mark.parametrize(
    "resize", ["resize_as_(batch)", "resize_(batch.size())", "data.resize_as_(batch)"]
)
def test_a_tensor_that_a_loop_fills_is_made_anew(resize, tmp_path):
    script = HEAD + FILLED.replace("{resize}", resize)
    script = script.replace("        label.resize_(batch.size(0)).fill_(1)\n", "")
    found = ported(script)
    assert "resize" not in found.text
    # of ``data`` torch of today resizes another tensor than the one it is of; it did not up to 0.3
    compare(script.replace("data.resize", "resize"), found.text, tmp_path)


def test_one_that_another_name_holds_is_listed():
    script = HEAD + "x = torch.FloatTensor(4, 3)\ny = Variable(x)\nx.resize_as_(p).copy_(p)\n"
    kinds = [edit.kind for edit in ported(script).edits if edit.rule == "resized"]
    assert kinds == ["unproven"]


def test_one_of_outside_is_refused_by_line():
    script = HEAD + "x = torch.FloatTensor(4, 3)\ndef fill(b):\n    x.resize_as_(b).copy_(b)\n"
    refused = [edit.line for edit in ported(script).edits if edit.kind == "refused"]
    assert refused == [HEAD.count("\n") + 3]


def test_half_of_what_nothing_says_is_listed():
    script = (
        "import torch\nimport nets\nG = nets.make().to('cuda')\nG = G.half()\nx = G(1).half()\n"
    )
    found = ported(script)
    assert "G = port.half(G)" in found.text
    assert [e.line for e in found.edits if e.kind == "unproven" and "half" in e.reason] == [4]
    assert port.half(Tensor(np.ones(2, np.float32))).dtype == ms.float16
    assert {one.dtype for one in port.half(nn.Dense(2, 2)).get_parameters()} == {ms.float16}
