"""Words that a port took and left out: a clip that raises, an average's device, a typed sampler."""

from __future__ import annotations

import pytest

from mpcore_port.engine import port_text

from .ports import TARGET, beside

CLIP = """import torch
net = torch.nn.Linear(2, 1)
torch.nn.init.constant_(net.weight, 0.5)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
made = []
for x in (torch.ones(2, 2), torch.ones(2, 2) * float("inf")):
    opt.zero_grad()
    net(x).sum().backward()
    try:
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
        opt.step()
        made.append(0.0)
    except RuntimeError:
        made.append(1.0)
"""


def test_a_clip_raises_where_it_is_told_to(tmp_path) -> None:
    beside(CLIP, tmp_path)


LOOP = """import torch
def train(net, opt, data):
    for x in data:
        opt.zero_grad()
        loss = net(x).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0ASKED)
        opt.step()
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
train(net, opt, [torch.ones(2, 2)])
"""


@pytest.mark.parametrize(("asked", "kept"), [("", False), (", error_if_nonfinite=True", True)])
def test_a_loop_that_raises_in_its_clip_keeps_torchs_form(asked: str, kept: bool) -> None:
    found = port_text(LOOP.replace("ASKED", asked), TARGET)
    assert ("error_if_nonfinite=True" in found.text) is kept


AVERAGE = """import torch
from timm.utils import ModelEma
net = torch.nn.Linear(2, 1)
average = ModelEma(net, decay=0.9, device="")
"""


def test_an_average_says_where_it_is() -> None:
    from mpcore_port_runtime import ModelEma  # MindSpore's, where it is needed

    text = port_text(AVERAGE, TARGET).text
    assert "device" in text
    names: dict[str, object] = {}
    exec(text, names)
    average = names["average"]
    assert isinstance(average, ModelEma)
    assert average.device == ""


SAMPLER = """from typing import List
import torch
from torch.utils.data import Sampler
class Pairs(Sampler[List[int]]):
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        return iter([[0, 1]] * self.n)
    def __len__(self):
        return self.n
made = [torch.tensor(list(Pairs(3))), len(Pairs(2))]
"""


def test_a_sampler_of_a_type(tmp_path) -> None:
    beside(SAMPLER, tmp_path)
