"""Names of tensors and of networks' parts, and classes that are called or asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options
from mpcore_port_runtime import torch_nn

from .ports import FILLED, TARGET, beside, loaded

PARTS = (
    FILLED
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(3)
        self.relu = nn.ReLU()
class Around(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def forward(self, x):
        return self.net.relu(self.net.norm(x))
def run(model, x):
    return model.relu(model.norm(x))
x = torch.arange(6.0).reshape(2, 3)
net = filled(Net())
made += [Around(net)(x), run(net, x), x.norm(), x.norm(1), x.relu()]
"""
)


def test_a_part_of_a_network_has_a_tensor_methods_name(tmp_path: Path) -> None:
    """``self.net.norm(x)`` is the network's part; it was the norm of a network, and raised."""
    beside(PARTS, tmp_path)


REPLACING = """
def replace(module, old, new):
    for name, child in module.named_children():
        if isinstance(child, old):
            setattr(module, name, new())
        else:
            replace(child, old, new)
    return module
"""
REPLACED = (
    "from replacing import replace\n"
    + FILLED
    + """
net = replace(filled(nn.Sequential(nn.Linear(3, 2), nn.SiLU())), nn.SiLU, nn.ReLU)
made.append(net(torch.arange(6.0).reshape(2, 3)))
"""
)


def test_a_class_is_asked_for_in_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is handed on to another file's ``isinstance`` is a kind there; it raised TypeError."""
    (tmp_path / "replacing.py").write_text(REPLACING, encoding="utf-8")
    (tmp_path / "train.py").write_text(REPLACED, encoding="utf-8")
    found = {
        Path(one.source.path).name: one
        for one in port_tree(walk(tmp_path), TARGET, Options()).files
    }
    other = tmp_path / "other"
    other.mkdir()
    (other / "replacing.py").write_text(found["replacing.py"].text, encoding="utf-8")
    monkeypatch.syspath_prepend(other)
    (made,) = loaded(found["train.py"].text, other)["made"]
    assert (made.asnumpy() >= 0).all()


ARGUMENTS = {
    "AvgPool2d": (2,),
    "Embedding": (4, 5),
    "GroupNorm": (1, 3),
    "LayerNorm": (3,),
    "Linear": (2, 3),
    "MaxPool2d": (2,),
}


def test_makers_know_their_layers() -> None:
    """Each layer is of its own kind, and of no other."""
    made = {}
    for name in torch_nn.__all__:
        plain = (
            (3,)
            if name.startswith("BatchNorm")
            else (2, 3)
            if name in ("GRU", "LSTM", "RNN")
            else ()
        )
        given = (2, 3, 3) if name.startswith("Conv") else ARGUMENTS.get(name, plain)
        made[name] = getattr(torch_nn, name)(*given)
    for name, layer in made.items():
        assert [one for one in made if isinstance(layer, getattr(torch_nn, one))] == [name]


EMPTY = """import torch
import torch.nn.functional as F
made = []
def parts(loss, t, x):
    pos = torch.nonzero(t > 5).squeeze(1)
    sel = F.smooth_l1_loss(x[pos], 2 * x[pos], reduction="none")
    keep = torch.where(t > 9)[0]
    return [sel.sum(), (x[t > 5] > 3).any(), torch.any(t[keep] > 0), loss[pos].sum(), x[keep].sum()]
for t in ([0, 1, 2, 3], [10, 11, 0, 3]):
    made += parts(torch.arange(4.0), torch.tensor(t), torch.ones(4, 2))
"""


def test_places_that_are_looked_for_may_be_none(tmp_path: Path) -> None:
    """Of no places a sum is 0 and nothing is true; MindSpore reduced what was in memory."""
    text = beside(EMPTY, tmp_path).text
    assert text.count("port.total(") == 3
    assert text.count("port.any_true(") == 2


BIASES = (
    FILLED
    + """
def fuse(layer, bias):
    layer.bias = nn.Parameter(bias)
    return layer
x = torch.arange(6.0).reshape(2, 3)
layer = filled(nn.Linear(3, 2, bias=False))
layer.bias = nn.Parameter(torch.ones(2))
other = filled(nn.Conv2d(3, 2, 1))
other.bias = None
another = filled(nn.Linear(3, 2))
another.register_parameter("bias", None)
made += [layer(x), other(x.reshape(2, 3, 1, 1)), another(x)]
made.append(fuse(filled(nn.Conv1d(3, 2, 1, bias=False)), torch.ones(2))(x.reshape(2, 3, 1)))
"""
)


def test_a_bias_that_comes_later_or_goes(tmp_path: Path) -> None:
    """A bias of a layer that was made without one was not added, and one that is None raised."""
    beside(BIASES, tmp_path)


PARTS_REPLACED = (
    FILLED
    + """
def swap(module):
    for name, child in module.named_children():
        if isinstance(child, nn.SiLU):
            setattr(module, name, nn.ReLU())
        elif isinstance(child, nn.Tanh):
            module._modules[name] = nn.Identity()
        else:
            swap(child)
    return module
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 2), nn.SiLU(), nn.Tanh())
        self.act = nn.SiLU()
    def forward(self, x):
        return self.act(self.body(x) - 1)
made.append(swap(filled(Net()))(torch.arange(6.0).reshape(2, 3)))
"""
)


def test_parts_of_a_row_are_replaced_by_name(tmp_path: Path) -> None:
    """A Sequential runs what its names hold; MindSpore's ran what it was made with."""
    assert beside(PARTS_REPLACED, tmp_path).text.count("port.set_part(") == 2
