"""What ports did beside their originals: dead rows, states of wrappers, bases that are mixed in."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from .ports import beside, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

DEAD = """import math, torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(1)
scores = torch.linspace(-1.0, 2.0, 48).view(2, 2, 3, 4).sin()
lengths = torch.tensor([[True, True, False], [True, False, False]])
mask = ~(lengths.unsqueeze(-1) & torch.ones(4, dtype=torch.bool)).unsqueeze(1)
masked = scores.masked_fill(mask, -math.inf)
made = [MAKER.masked_fill(mask, 0.0)]
weight = nn.Parameter(torch.ones(4))
scores = (scores * weight).masked_fill(mask, -math.inf)
loss = (torch.softmax(scores, dim=-1).masked_fill(mask, 0.0) * torch.arange(4.0)).sum()
loss.backward()
made += [loss.detach(), weight.grad]
"""
MAKERS = (
    "torch.softmax(masked, dim=-1)",
    "F.softmax(masked, 3)",
    "masked.softmax(-1)",
    "nn.Softmax(dim=-1)(masked)",
    "F.softmax(masked, dim=-1, dtype=torch.float32)",
)


@pytest.mark.parametrize("maker", MAKERS)
def test_a_row_that_is_masked_throughout_leaves_the_others_alone(
    maker: str, tmp_path: Path
) -> None:
    beside(DEAD.replace("MAKER", maker), tmp_path)


NOAM = """import io, torch
from torch import nn
class Noam(object):
    def __init__(self, size, optimizer):
        self.optimizer = optimizer
        self._step = 0
        self.size = size
    @property
    def param_groups(self):
        return self.optimizer.param_groups
    def step(self):
        self._step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self._step / self.size
        self.optimizer.step()
    def zero_grad(self):
        self.optimizer.zero_grad()
    def state_dict(self):
        return {"_step": self._step, "size": self.size, "optimizer": self.optimizer.state_dict()}
    def load_state_dict(self, state_dict):
        for key, value in state_dict.items():
            if key == "optimizer":
                self.optimizer.load_state_dict(state_dict["optimizer"])
            else:
                setattr(self, key, value)
def of(net, size):
    return Noam(size, torch.optim.Adam(net.parameters(), lr=0, betas=(0.9, 0.98), eps=1e-9))
net = nn.Linear(2, 1)
for p in net.parameters():
    p.data.fill_(0.5)
optimizer = of(net, 100.0)
made = []
for i in range(4):
    loss = ((net(torch.arange(6.0).view(3, 2)) - i) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    made += [loss.item(), optimizer.param_groups[0]["lr"]]
    if i == 1:
        file = io.BytesIO()
        torch.save({"net": net.state_dict(), "optim": optimizer.state_dict()}, file)
        file.seek(0)
        state = torch.load(file)
        optimizer = of(net, 7.0)
        optimizer.load_state_dict(state["optim"])
made += [optimizer._step, optimizer.size]
"""


def test_what_is_around_an_optimizer_has_a_state_of_its_own(tmp_path: Path) -> None:
    beside(NOAM, tmp_path)


MIXED_IN = """import torch
class Local:
    def convert(self, x):
        self.eval()
        with torch.no_grad():
            y = self.forward(x)
        self.train()
        self.requires_grad_(False)
        names = [name for name, _ in self.named_parameters()]
        return y, names, sum(p.numel() for p in self.parameters()), len(self.state_dict())
class Loop:
    def run(self):
        return self.train(), self.forward(2)
"""
MIXING = """import torch
from torch import nn
from local_of_another_file import Local, Loop
class Net(Local, nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 3, bias=False)
        self.a.weight.data.fill_(0.5)
    def forward(self, x):
        return self.a(x) * (2 if self.training else 1)
class Own(Loop):
    def train(self):
        return 3
    def forward(self, x):
        return x
net = Net()
y, names, count, kept = net.convert(torch.ones(1, 2))
made = [y, len(names), count, kept, net.training, net.a.weight.requires_grad, *Own().run()]
"""


def test_a_class_of_no_base_may_be_a_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "local_of_another_file.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    kept = []
    for text in (MIXED_IN, ported(MIXED_IN).text):
        other.write_text(text, encoding="utf-8")
        sys.modules.pop(other.stem, None)
        if not kept:
            theirs: dict[str, object] = {"__name__": "script"}
            exec(MIXING, theirs)
            kept.append(theirs["made"])
        else:
            kept.append(loaded(ported(MIXING).text, tmp_path)["made"])
    sys.modules.pop(other.stem, None)
    assert kept[1][0].asnumpy().tolist() == kept[0][0].tolist()
    assert kept[1][1:] == kept[0][1:]


def test_an_own_method_of_a_class_of_no_base_stays() -> None:
    script = "class Loop:\n    def train(self):\n        return 1\n    def run(self):\n"
    assert "return self.train()" in ported(script + "        return self.train()\n").text
    script += "        self.forward = len\n        return self.forward([])\n"
    assert "return self.forward([])" in ported("import torch\n" + script).text


FROZEN = """import torch
from torch import nn
class Frozen(nn.Module):
    def __init__(self, learns):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.requires_grad_(learns)
made = [p.requires_grad for learns in (True, False) for p in Frozen(learns).parameters()]
"""


def test_a_network_freezes_itself(tmp_path: Path) -> None:
    beside(FROZEN, tmp_path)


WORDS = """import torch
from torch import nn
pools = [nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((1, 1)), nn.AdaptiveAvgPool2d((2, 3))]
made = [pool.output_size == 1 for pool in pools] + [pool.output_size == (1, 1) for pool in pools]
made += [nn.Softmax(dim=1).dim, nn.LogSoftmax(0).dim]
up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
made += [up.scale_factor, up.mode == "bilinear", up.align_corners, up.size is None]
made += [up(torch.arange(4.0).view(1, 1, 2, 2))]
"""


def test_layers_keep_what_they_were_given(tmp_path: Path) -> None:
    beside(WORDS, tmp_path)


WEIGHT = """import torch
from torch import nn
def run(path, keys):
    adapter = nn.Linear(keys.shape[0], keys.shape[1], bias=False).to(keys.dtype).cpu()
    adapter.weight = nn.Parameter(keys.t())
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=0.1, eps=1e-4)
    found = []
    for i in range(3):
        loss = (adapter(torch.ones(1, 3)) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
        if i == 1:
            torch.save(adapter.weight, path)
    found.append(adapter.weight.detach().clone())
    adapter.weight = torch.load(path)
    found += [adapter(torch.ones(1, 3)).sum().detach(), adapter.weight.requires_grad]
    found.append(len(list(adapter.parameters())))
    return found
made = run(PATH, torch.arange(6.0).view(3, 2) / 6)
"""


def test_a_weight_that_is_saved_alone_is_put_back(tmp_path: Path) -> None:
    beside(WEIGHT.replace("PATH", repr(str(tmp_path / "best.pt"))), tmp_path)
