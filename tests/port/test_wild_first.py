"""What networks and loops of repositories that nobody tuned for asked for, port beside original."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from mindspore import Tensor

from mpcore.errors import CheckpointError
from mpcore_port_runtime.files import load_scripted, save

from .ports import beside, compare, ported

if TYPE_CHECKING:
    from pathlib import Path

OWN_NORM = """import torch
from torch import nn
class LayerNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
    def forward(self, x):
        return x * self.weight + self.bias
class Wide(nn.LayerNorm):
    pass
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.norm, self.wide = LayerNorm(3), nn.LayerNorm(3), Wide(3)
        self.apply(self.start)
    def start(self, m):
        if isinstance(m, {kinds}):
            nn.init.constant_(m.bias, 0.5)
            nn.init.constant_(m.weight, 2.0)
    def forward(self, x):
        return self.wide(self.norm(self.own(x)))
made = [Net()(torch.arange(6.0).view(2, 3) ** 2)]
"""


@pytest.mark.parametrize("kinds", ["(LayerNorm, nn.LayerNorm)", "Wide", "(LayerNorm, Wide)"])
def test_a_class_of_the_script_stands_beside_a_norm(kinds: str, tmp_path: Path) -> None:
    beside(OWN_NORM.format(kinds=kinds), tmp_path)


HOOKS = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5, -2.25, 3.75]))
    def forward(self, x):
        return x * self.weight
def train(model, optimizer, scaler, batches):
    for x in batches:
        y = model(x)
        {inner}
        loss = y.pow(2).mean()
        {outer}
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda", enabled=False)
train(model, optimizer, scaler, [torch.ones(2, 3), torch.arange(6.0).view(2, 3)])
made = [model.weight]
"""
HALF = "{}.register_hook(lambda grad: grad * 0.5)"


@pytest.mark.parametrize(
    ("inner", "outer"), [(HALF.format("y"), "pass"), ("pass", HALF.format("loss"))]
)
def test_hooks_halve_gradients_of_a_step(inner: str, outer: str, tmp_path: Path) -> None:
    beside(HOOKS.format(inner=inner, outer=outer), tmp_path)


SCRIPTED = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.a, self.n = nn.Linear(size, 2), nn.LayerNorm(2)
    def forward(self, x):
        return self.n(self.a(x))
def load(path, jit=False, device="cpu"):
    try:
        model = torch.jit.load(path, map_location=device if jit else "cpu").eval()
        state_dict = None
    except RuntimeError:
        state_dict = torch.load(path, map_location="cpu")
    state_dict = state_dict or model.state_dict()
    net = Net(state_dict["a.weight"].shape[1])
    net.load_state_dict(state_dict)
    return net.eval().to(device)
made = [load(PATH)(torch.arange(6.0).view(2, 3) ** 2)]
"""


def test_weights_come_out_of_what_torchscript_holds(tmp_path: Path) -> None:
    weight, bias = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]]), torch.tensor([0.5, -0.5])
    state = {"a.weight": weight, "a.bias": bias, "n.weight": bias + 2, "n.bias": bias * 3}
    theirs, own = tmp_path / "theirs.pt", tmp_path / "own.pt"
    inner = torch.nn.Module()
    inner.a, inner.n = torch.nn.Linear(3, 2), torch.nn.LayerNorm(2)
    inner.load_state_dict(state)
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.save(torch.jit.script(inner), str(theirs))
    save({name: Tensor(one.numpy()) for name, one in state.items()}, own)
    text = ported(SCRIPTED).text
    script = SCRIPTED.replace("PATH", repr(str(theirs)))
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        compare(script, text.replace("PATH", repr(str(own))), tmp_path)


def test_what_torchscript_runs_is_refused_where_it_is_loaded() -> None:
    found = ported("import torch\nscore = torch.jit.load('net.pt')\ny = score(torch.ones(2))\n")
    assert [(one.kind, one.line) for one in found.edits if "TorchScript" in one.reason] == [
        ("refused", 2)
    ]


def test_a_file_of_more_than_a_state_is_no_network(tmp_path: Path) -> None:
    save({"epoch": 3, "state": {}}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="state dict"):
        load_scripted(tmp_path / "a.pt")


SETTINGS = [
    "import mmcv\ncfg = mmcv.Config.fromfile('a.py')\n",
    "from mmcv import Config, DictAction\ncfg = Config.fromfile('a.py')\n",
    "from dotmap import DotMap\ncfg = DotMap({'a': 1})\n",
]


@pytest.mark.parametrize("text", SETTINGS)
def test_settings_of_a_package_that_needs_torch_elsewhere_stay(text: str) -> None:
    found = ported(f"{text}import torch\nx = torch.ones(2)\n")
    assert text in found.text
    assert not [one for one in found.edits if one.kind == "unproven"]


def test_a_package_of_which_more_is_used_is_refused() -> None:
    found = ported("import mmcv\ncfg = mmcv.Config()\nmmcv.ops.nms(cfg)\n")
    assert "refused" in [one.kind for one in found.edits]
