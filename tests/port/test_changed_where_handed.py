"""Tensors that are changed in place where a function was handed them, and batches, and entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import NET, beside, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

STARTS = """import math, torch
from torch import nn
def _no_grad_trunc_normal_(tensor, mean, std, a, b):
    def norm_cdf(x):
        return (1. + math.erf(x / math.sqrt(2.))) / 2.
    with torch.no_grad():
        l = norm_cdf((a - mean) / std)
        u = norm_cdf((b - mean) / std)
        tensor.uniform_(2 * l - 1, 2 * u - 1)
        tensor.erfinv_()
        tensor.mul_(std * math.sqrt(2.))
        tensor.add_(mean)
        tensor.clamp_(min=a, max=b)
        return tensor
def filled(tensor, value):
    with torch.no_grad():
        return tensor.fill_(value)
@torch.no_grad()
def scaled(tensor, by):
    tensor.mul_(by).add_(1)
    return tensor
def started(tensor):
    std = 1 / math.sqrt(tensor.shape[-1])
    tensor.uniform_(-std, std)
    return tensor
net = nn.Linear(30, 20)
_no_grad_trunc_normal_(net.weight, 0.0, 0.5, -0.25, 0.5)
low, high = float(net.weight.detach().min()), float(net.weight.detach().max())
made = [-0.25 <= low < 0, 0 < high <= 0.5, 0.1 < float(net.weight.detach().std()) < 0.3]
made += [scaled(filled(net.bias, 3.0), 2).detach(), net.bias.detach()]
made += [float(started(torch.zeros((4, 4))).abs().max()) <= 0.5]
"""

BATCHES = """import torch
def moved(images, device):
    images = images.to(device=device, non_blocking=True)
    if images.dtype == torch.uint8:
        images = images.to(torch.float32).div_(255.)
        images.sub_(0.5).div_(0.25)
    return images
def taken(batch):
    images, targets = batch
    images = images.float().div_(255.0).sub_(0.5)
    batch[0].float()
    return images, targets.float().mul_(2)
x = torch.arange(8, dtype=torch.uint8).reshape(2, 4)
made = [moved(x, torch.device("cpu")), *taken((x, torch.ones(3, dtype=torch.int64)))]
entries = {"a": torch.ones(2), "b": torch.zeros(3)}
entries["a"].mul_(3).add_(1)
for key in entries:
    entries[key].sub_(1)
with torch.no_grad():
    for key, value in entries.items():
        value.div_(4)
made += [entries["a"], entries["b"]]
"""

LOGS = """import torch
from torch import nn
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3) / 7)
    def forward(self, x):
        y = x @ self.weight.t()
        first, second = y.pow(2).mean(), y.abs().mean()
        return first + second, dict(first=first, second=second)
net = Two()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
made = [len(optimizer.state_dict()["state"])]
for number in range(3):
    loss, logs = net(torch.ones(2, 3) * (number + 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for value in logs.values():
        value.div_(2)
    made += [logs["first"].item(), logs["second"].item()]
for place, held in optimizer.state_dict().get("state").items():
    made += [place, float(held["exp_avg"].abs().mean()), float(held.get("step"))]
made += [len(optimizer.state_dict().get("param_groups"))]
"""


REGISTRY = """class Registry:
    def __init__(self, name):
        self.held = {}
    def register_module(self, name=None, module=None):
        def put(one):
            self.held[name or one.__name__] = one
            return one
        return put if module is None else put(module)
"""


def test_what_a_function_is_handed_is_changed_where_nothing_has_gradients(tmp_path: Path) -> None:
    assert "port.put(tensor, tensor.erfinv())" in beside(STARTS, tmp_path).text


def test_batches_and_entries_are_made_anew(tmp_path: Path) -> None:
    assert "_mpcore_refused" not in beside(BATCHES, tmp_path).text


def test_logs_behind_a_pass_and_what_an_optimizer_keeps(tmp_path: Path) -> None:
    assert "port.put(value, value.div(2))" in beside(LOGS, tmp_path).text


def test_own_functions_of_other_files_give_fresh_tensors_perhaps() -> None:
    found = ported(
        "import utils\nfrom helpers import off_diagonal\n"
        "def cost(c):\n    first = utils.off_diagonal(c).pow_(2).sum()\n"
        "    return first + off_diagonal(c).pow_(2).sum()\n"
    )
    assert "off_diagonal(c).pow(2)" in found.text
    assert found.text.count(".pow(2)") == 2
    assert "unproven" in found.status


def test_what_may_be_the_tensor_itself_is_refused_on_a_line() -> None:
    assert (
        "x.to(dev).mul_: in-place"
        in ported("import torch\ndef moved(x, dev):\n    x.to(dev).mul_(2)\n    return x\n").text
    )


def test_torch_of_torch_is_torch(tmp_path: Path) -> None:
    beside("import torch\nmade = [torch.torch.ones((3,)) * 2]\n", tmp_path)


def test_registries_have_a_method_of_that_name(tmp_path: Path) -> None:
    script = """from torch import nn
from registry import Registry
LAYERS = Registry("layers")
@LAYERS.register_module("Own")
class Own:
    pass
@LAYERS.register_module()
class Other(nn.Module):
    pass
LAYERS.register_module("Line", nn.Identity)
LAYERS.register_module(module=nn.Linear, name="Lines")
"""
    (tmp_path / "registry.py").write_text(REGISTRY, encoding="utf-8")
    text = ported(script + "made = [len(LAYERS.held), LAYERS.held['Own'] is Own]\n").text
    assert '@LAYERS.register_module("Own")' in text
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        assert loaded(text, tmp_path)["made"] == [4, True]


GIVEN_BACK = (
    """import torch
from torch import nn
"""
    + NET
    + """def contrast(model, x):
    return model, model(x), model(x).pow(2).mean()
def fit(model, optimizer, kind):
    losses = []
    for number in range(3):
        x = torch.ones(4, 3) * (number + 1)
        with torch.autocast("cpu", enabled=False):
            if kind == "contrast":
                model, y, partial = contrast(model, x)
            else:
                y = model(x)
            if kind == "contrast" and partial:
                loss = partial
            else:
                loss = nn.L1Loss(reduction="mean")(y, torch.zeros_like(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
net = Net()
made = [*fit(net, torch.optim.SGD(net.parameters(), lr=0.1), "plain")]
made += [*fit(net, torch.optim.SGD(net.parameters(), lr=0.1), "contrast")]
"""
)


def test_a_network_that_one_branch_gives_back_is_trained(tmp_path: Path) -> None:
    beside(GIVEN_BACK, tmp_path)
