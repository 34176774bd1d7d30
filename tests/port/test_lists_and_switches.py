"""A list that is sorted is no tensor; a policy's switch may be made behind its scaler."""

from __future__ import annotations

import pytest

from .ports import beside, ported
from .test_turns import HEAD, LEFT

SORTED = """import torch
names = ["b", "a", "c"]
unique = list(set(names))
unique.sort()
made = [torch.tensor(float(unique.index("c")))]
def ordered(found):
    found.sort()
    return found
made += [torch.tensor(ordered([3.0, 1.0, 2.0])), torch.tensor([2.0, 1.0]).sort()[0]]
"""


def test_a_list_is_sorted_as_it_was(tmp_path):
    assert "port.sort" not in beside(SORTED, tmp_path).text.partition("ordered([")[0]


TRAINER = """
class Trainer:
    def __init__(self, net, optimizer, mixed):
        self.net, self.optimizer = net, optimizer
        {first}
        {second}
    def train(self):
        for x, y in batches:
            self.optimizer.zero_grad()
            if self.mixed:
                with torch.autocast("cuda"):
                    loss = criterion(self.net(x), y)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                loss = criterion(self.net(x), y)
                loss.backward()
                self.optimizer.step()
            made.append(loss.detach())
"""
SCALER = 'self.scaler = torch.amp.GradScaler("cpu")'
SWITCH = "self.mixed = mixed"


@pytest.mark.parametrize("lines", [(SCALER, SWITCH), (SWITCH, SCALER)], ids=["behind", "before"])
def test_a_switch_is_read_where_it_is_there(lines, tmp_path):
    script = TRAINER.replace("{first}", lines[0]).replace("{second}", lines[1])
    beside(f"{HEAD}{script}Trainer(model, optimizer, False).train()\n{LEFT}", tmp_path)


def test_old_upsample_is_interpolate():
    body = "x = torch.ones(1, 1, 4, 4)\ny = F.upsample(x, size=(8, 8), mode='bilinear')\n"
    assert "port.interpolate(x, size=(8, 8), mode='bilinear')" in ported(HEAD + body).text


GROWN = """import torch
from torch import nn
class Many(nn.Module):
    def __init__(self):
        super().__init__()
        parts = [nn.Linear(3, 3)]
        parts = parts + [nn.Linear(3, 3) for _ in range(2)]
        self.parts = nn.ModuleList(parts)
    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x
net = Many()
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
made = [net(torch.ones(2, 3))]
"""


def test_a_list_that_grows_by_itself_is_a_list(tmp_path):
    assert "nn.CellList(parts)" in beside(GROWN, tmp_path).text
