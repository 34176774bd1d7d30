"""What readers of unseen ports found: weights asked by name, states that move, settings twice."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from .ports import TARGET, beside, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = """import torch.nn as nn
from norms_of_another_file import make
def groups(module):
    decay, rest = [], []
    for m in module.modules():
        if isinstance(m, (nn.Linear, nn.modules.conv._ConvNd)):
            decay.append(m.weight)
        else:
            if hasattr(m, "weight"):
                rest.append(m.weight)
            if hasattr(m, "bias"):
                rest.append(m.bias)
    return len(decay), len(rest)
found = groups(make())
"""


def test_weights_of_norms_of_another_file_are_asked_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms = "from mindspore import nn\ndef make():\n    return nn.SequentialCell("
    norms += "nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))\n"
    (tmp_path / "norms_of_another_file.py").write_text(norms, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert loaded(ported(GROUPS).text, tmp_path)["found"] == (1, 2)
    finally:
        sys.modules.pop("norms_of_another_file", None)


LOOPS = (
    "for m in net.modules():\n        found.append(m.weight)",
    "for name, m in net.named_modules():\n        found.append(m.weight)",
    "for place, m in enumerate(net.children()):\n        found.append(m.weight)",
    "found += [m.weight for m in net.modules()]",
    "for m in others:\n        if hasattr(m, 'weight'):\n            found.append(m.weight)",
)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_layer_may_be_any_where_a_loop_goes_through_them(loop: str) -> None:
    script = f"import torch\ndef of(net, others):\n    found = []\n    {loop}\n    return found\n"
    assert 'port.held(m, "weight")' in ported(script).text


def test_what_else_has_a_weight_keeps_its_own_name() -> None:
    script = "import torch\ndef of(items):\n    return [m.weight for m in items]\n"
    assert "m.weight" in ported(script).text


KEPT = """import io, torch
from torch import nn
class Average:
    def __init__(self, net):
        self.net = net
        self.shadow = [p.detach().clone() for p in net.parameters()]
    def store(self):
        self.kept = [p.detach().clone() for p in self.net.parameters()]
    def copy_to(self):
        for p, s in zip(self.net.parameters(), self.shadow):
            p.data.copy_(s)
    def restore(self):
        for p, s in zip(self.net.parameters(), self.kept):
            p.data.copy_(s)
def full(net, value):
    with torch.no_grad():
        net.weight.fill_(value)
net = nn.Linear(2, 1, bias=False)
full(net, 1.0)
average = Average(net)
full(net, 2.0)
state = {"epoch": 1}
average.store()
average.copy_to()
state["model"] = net.state_dict()
average.restore()
file = io.BytesIO()
torch.save(state, file)
file.seek(0)
now = torch.load(file)["model"]["weight"]
net.load_state_dict(state["model"])
made = [now.sum(), net.weight.sum()]
"""


def test_a_state_that_is_kept_has_the_weights_that_come_after(tmp_path: Path) -> None:
    assert "port.live_state_dict(net)" in beside(KEPT, tmp_path).text


FUSED = """import torch
from apex.optimizers import FusedAdam
def make(net, **settings):
    return FusedAdam(net.parameters(), adam_w_mode=True, **settings)
opt = make(torch.nn.Linear(3, 2), lr=0.1, weight_decay=0.5)
plain = make(torch.nn.Linear(3, 2), lr=0.1)
found = [one.param_groups[0]["weight_decay"] for one in (opt, plain)]
"""


@pytest.mark.parametrize("name", ["mindspore", "torch_npu"])
def test_settings_may_have_what_a_port_writes_out(name: str, tmp_path: Path) -> None:
    from mpcore_port.targets import load_target

    text = ported(FUSED, TARGET if name == "mindspore" else load_target(name)).text
    assert '**{"weight_decay": 0.0, **' in text
    if name == "mindspore":
        assert loaded(text, tmp_path)["found"] == [0.5, 0.0]
