"""What scripts of a wider mix showed next: parts of the unknown, norms of volumes, apex's casts."""

from __future__ import annotations

import re
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

import mpcore_port_runtime as port

from .ports import FILLED, NET, beside, loaded, ported

# --- parts and flags of what nothing says ---------------------------------------------------------

PARTS = """
import torch
import numpy as np
from feats import transformed
class Own:
    def __init__(self, n):
        self.real = n
        self.kept = np.full(2, 3.0)
    def get(self):
        return self.real + self.kept.real
class Settings:
    real = 4
def told(x):
    return transformed(x).real
def parts(x):
    return x.real, x.imag
def written(x):
    x.real[0] = 2
    x.imag *= 2
def neutral(cfg):
    n, a = 3.0, np.ones(2)
    cfg.imag = 5
    return n.real, a.imag, Settings.real, cfg.imag, Own(1).get()
"""


def test_parts_of_the_unknown_ask_what_it_is(tmp_path: Path) -> None:
    found = ported(PARTS)
    said = {(edit.old, edit.kind) for edit in found.edits if edit.new.startswith("port.")}
    assert {("transformed(x).real", "unproven"), ("x.real", "unproven")} <= said
    text = found.text.replace("from feats import transformed\n", "")
    parts = loaded(text, tmp_path)["parts"]
    real, imag = parts(ms.Tensor(np.array([1 + 2j, 3 - 4j], np.complex64)))
    assert (real.asnumpy().tolist(), imag.asnumpy().tolist()) == ([1.0, 3.0], [2.0, -4.0])
    assert parts(3 + 4j) == (3.0, 4.0)
    assert parts(np.array(2 - 1j)) == (2.0, -1.0)


def test_parts_of_arrays_numbers_and_own_objects_stay() -> None:
    text = ported(PARTS).text
    for kept in ("self.real + self.kept.real", "n.real, a.imag, Settings.real, cfg.imag"):
        assert kept in text


def test_what_is_written_into_a_part_is_named() -> None:
    named = {edit.line for edit in ported(PARTS).edits if "does not reach" in edit.reason}
    lines = PARTS.splitlines()
    assert {lines[line - 1].strip() for line in named} == {"x.real[0] = 2", "x.imag *= 2"}


def test_flags_of_what_another_file_gives_are_named() -> None:
    script = """
import torch
from feats import transformed
def told(x, y):
    spec = transformed(x)
    if spec.is_leaf or y.is_quantized:
        return spec.layout, spec._version, spec.ndim, spec.shape, spec.T
"""
    found = ported(script)
    named = {edit.old for edit in found.edits if "MindSpore has no" in edit.reason}
    assert named == {
        *("spec.is_leaf", "y.is_quantized", "spec.layout", "spec._version"),
    }


def test_flags_of_parameters_and_gradients_are_known(tmp_path: Path) -> None:
    script = f"""{FILLED}{NET}
net = Net()
net(torch.ones(2, 3)).sum().backward()
for p in net.parameters():
    if p.is_leaf and p.grad is not None and not p.grad.is_sparse:
        made.append(p.grad)
"""
    assert {edit.kind for edit in beside(script, tmp_path).edits} <= {"exact", "unproven"}


# --- norms of volumes -----------------------------------------------------------------------------

VOLUMES = """
import torch
import torch.nn as nn
made = []
def start(net):
    for m in net.modules():
        if isinstance(m, nn.BatchNorm3d):
            m.weight.data.fill_(2)
            m.bias.data.zero_()
            made.append(m.running_mean + 1)
def joined(net):
    for m in net.modules():
        if isinstance(m, (nn.BatchNorm2d, nn.BatchNorm3d)):
            nn.init.constant_(m.weight, 3)
            m.bias.data.fill_(0.5)
            m.running_var.fill_(4)
            made.append(m.running_var)
def based(net):
    for m in net.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            nn.init.constant_(m.bias, 5)
            m.weight.requires_grad = False
            made.append(m.running_mean)
def given(net):
    for m in net.modules():
        if isinstance(m, nn.BatchNorm3d):
            m.weight = nn.Parameter(torch.ones(4) * 7)
def asked(net):
    for m in net.modules():
        if hasattr(m, "running_mean") and getattr(m, "weight", None) is not None:
            made.append(m.weight * 2)
def all_of(net):
    for name, p in net.named_parameters():
        made.append(p)
        made.append(p.requires_grad)
    return [name for name, p in net.named_parameters()]
class Volumes(nn.BatchNorm3d):
    def reset(self):
        nn.init.constant_(self.weight, 6)
        self.bias.data.fill_(1)
net = nn.Sequential(nn.BatchNorm3d(4), nn.ReLU(), nn.BatchNorm3d(4, affine=False))
x = torch.arange(64.0).reshape(2, 4, 2, 2, 2)
bn = nn.BatchNorm3d(4)
bn.weight.data.fill_(2)
nn.init.zeros_(bn.bias)
made.append(bn(x))
made.append(bn.running_mean)
only = nn.Sequential(nn.BatchNorm3d(4), nn.BatchNorm2d(4))
own = Volumes(4)
own.reset()
made += [own(x), own.weight]
for change in (start, joined, asked, based, given):
    change(only[:1])
    made.append(only[0](x))
    made.append(all_of(only) == ["0.weight", "0.bias", "1.weight", "1.bias"])
joined(only)
asked(net)
made.append(net(x))
"""


def test_norms_of_volumes_are_started_by_their_weights(tmp_path: Path) -> None:
    found = beside(VOLUMES, tmp_path)
    assert "m.bn2d.gamma" in found.text


APPLIED = """
import torch
import torch.nn as nn
made = []
def flat(m):
    if isinstance(m, nn.BatchNorm2d):
        m.weight.data.fill_(9)
def named(m):
    if m.__class__.__name__.find("BatchNorm") != -1:
        nn.init.constant_(m.weight.data, 3)
        made.append(m.bias + 1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(1, 4, 1)
        self.bn = nn.BatchNorm3d(4)
        self.apply(flat)
net = Net()
made.append(net.bn.weight.clone())
net.apply(named)
made.append(net.bn.weight)
for part in net.children():
    made.append(len(list(part.children())))
"""


def test_functions_are_applied_to_a_norm_of_volumes_alone(tmp_path: Path) -> None:
    beside(APPLIED, tmp_path)


def test_settings_of_a_norm_of_volumes_are_set_on_the_cell() -> None:
    norm = nn.BatchNorm3d(2)
    norm.gamma = ms.Parameter(ms.Tensor([3.0, 4.0]))
    norm.moving_mean.set_data(ms.Tensor([1.0, 2.0]))
    assert norm.bn2d.gamma.asnumpy().tolist() == [3.0, 4.0]
    assert port.held(norm, "running_mean").asnumpy().tolist() == [1.0, 2.0]
    assert [name for name, _ in port.named_parameters(norm)] == ["weight", "bias"]


# --- apex's casts ---------------------------------------------------------------------------------

CASTS = """
import torch
from torch import nn
from apex import amp as imported
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 2)
        self.off = False
    def forward(self, x):
        if self.off:
            with imported.disable_casts():
                return self.line(x)
        return self.line(x)
def told(amp, net, x):
    with amp.disable_casts():
        return net(x)
def registered(amp, net):
    amp.register_half_function(net, "forward")
def main(x, fp16=True):
    amp = None
    net = Net()
    if fp16:
        from apex import amp
        net = amp.initialize(net, opt_level="O1")
    low, full = net(x), told(amp, net, x)
    again = net(x)
    net.off = True
    return low, full, again, net(x), net.line.weight, net.line.bias
"""


def test_casts_of_apex_are_off_in_a_block(tmp_path: Path) -> None:
    found = ported(CASTS)
    kinds = {edit.kind for edit in found.edits if edit.old == "imported.disable_casts()"}
    assert kinds == {"exact"}
    x = np.array([[1.2345678, -0.1234567, 3.3333333]], np.float32)
    *made, weight, bias = loaded(found.text, tmp_path)["main"](ms.Tensor(x))
    exact = x @ weight.asnumpy().T + bias.asnumpy()
    low, full, again, inner = (float(np.abs(one.asnumpy() - exact).max()) for one in made)
    assert max(full, inner) < 1e-6 < 1e-5 < low == again


def test_a_block_without_casts_ends_after_an_exception() -> None:
    with pytest.raises(KeyError), port.apex.disable_casts():
        raise KeyError
    assert port.apex._RUN.casts


def test_the_port_has_the_names_of_apex() -> None:
    home = Path(__file__).parents[2] / "compat" / "mpcore_compat" / "apex"
    names = (home / "amp.py").read_text(encoding="utf-8")
    listed = re.findall(r'^    "(\w+)",$', names.partition("]")[0], re.M)
    assert listed
    assert [name for name in listed if not hasattr(port.apex, name)] == []
    assert port.apex.amp._amp_state.loss_scalers is port.apex.loss_scalers()
    with pytest.raises(NotImplementedError, match="fixed"):
        port.apex.register_half_function(port, "loss")
    said = {edit.old: edit.reason for edit in ported(CASTS).edits if edit.kind == "unproven"}
    assert "lists are fixed" in said["amp.register_half_function"]
