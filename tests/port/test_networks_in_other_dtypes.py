"""``net.half()``, ``vae.to(device, dtype=weight_dtype)``: the parameters themselves are cast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mindspore as ms
from mindspore import Tensor, nn, ops

import mpcore_port_runtime as port

from .ports import beside, compare, ported

if TYPE_CHECKING:
    from pathlib import Path

FROZEN = """import torch
from torch import nn
import torch.nn.functional as F
made = []
class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(6, 4)
        self.norm = nn.LayerNorm(4)
        nn.init.constant_(self.dense.weight, 0.13)
        nn.init.constant_(self.dense.bias, 0.07)
        self.register_buffer("shift", torch.arange(4.0) / 3)
        self.register_buffer("ids", torch.arange(4))
    def encode(self, x):
        return self.norm(self.dense(x) * self.shift)
def main(device, weight_dtype):
    vae = Coder()
    vae.requires_grad_(False)
    made.append(vae.encode(torch.ones(2, 6)))
    vae.to(device, dtype=weight_dtype)
    net = nn.Linear(4, 4)
    nn.init.constant_(net.weight, 0.1)
    nn.init.constant_(net.bias, 0.1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    for i in range(3):
        x = torch.sin(torch.arange(12.0) * (i + 1)).view(2, 6)
        with torch.no_grad():
            latents = vae.encode(x.to(weight_dtype))
        made.append(latents.float())
        model_pred = net(latents.float())
        loss = F.mse_loss(model_pred.float(), x[:, :4])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        made.append(loss.item())
    made.append(vae.float().encode(torch.ones(2, 6)))
    made.append(str(vae.ids.dtype).rpartition(".")[2].lower() == "int64")
main("cpu", torch.float32)
"""


def test_a_network_is_moved_to_a_dtype(tmp_path: Path) -> None:
    found = ported(FROZEN)
    assert "port.to(vae, weight_dtype)" in found.text
    compare(FROZEN, found.text, tmp_path)
    halved = FROZEN + 'main("cpu", torch.float16)\n'
    compare(halved, ported(halved).text, tmp_path, rtol=2e-2, atol=1e-2)  # of 11 bits, in a norm


HALVED = """import torch
from torch import nn
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape) / 3)
net = net.half()
optimizer = torch.optim.SGD(net.parameters(), lr=0.25)
made = []
for i in range(3):
    loss = net(torch.ones(2, 3).half() * (i + 1)).float().pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.item())
made += [p.float() for p in net.parameters()]
"""


def test_a_network_in_half_is_trained_so(tmp_path: Path) -> None:
    found = ported(HALVED)
    assert "net = port.to(net, ms.float16)" in found.text
    compare(HALVED, found.text, tmp_path, rtol=4e-3, atol=1e-3)
    assert [edit for edit in found.edits if edit.kind == "changed" and "kernels" in edit.effect]


WIDE = "import torch\nnet = torch.nn.Linear(3, 2)\nnet.float()\nmade = [sum(net.weight.shape)]\n"


def test_where_nothing_is_cast_float_goes(tmp_path: Path) -> None:
    assert "float32" not in beside(WIDE, tmp_path).text


def test_what_kernels_have_read_is_cast() -> None:
    cell = nn.SequentialCell(nn.Conv2d(3, 4, 3, has_bias=True), nn.BatchNorm2d(4))
    cell(ops.ones((1, 3, 8, 8)))
    assert port.to(cell, ms.float16) is cell
    assert cell.set_train()(ops.ones((1, 3, 8, 8), ms.float16)).dtype == ms.float16
    assert port.half(Tensor([1.0])).dtype == ms.float16
    assert {str(one.dtype) for one in port.state_dict(port.half(cell)).values()} >= {"Float16"}


EACH = """import torch
from torch import nn
class Norm(nn.BatchNorm1d):
    pass
net = nn.Sequential(nn.Linear(3, 4), Norm(4)).eval()
for p in net.parameters():
    nn.init.constant_(p, 0.3)
net.half()
for mod in net.modules():
    if isinstance(mod, Norm):
        mod.float()
made = [net[1](net[0](torch.ones(2, 3).half()).float())]
"""


def test_parts_are_cast_back(tmp_path: Path) -> None:
    found = ported(EACH)
    assert "port.to(mod, ms.float32)" in found.text
    compare(EACH, found.text, tmp_path, rtol=2e-3)
