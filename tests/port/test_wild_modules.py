"""What modules and functions of many repositories asked for, port beside original."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore_port.targets import load_target

from .ports import beside, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

SLOPES = """import torch
from torch import nn
made = []
def f(w):
    y = {made}
    return y * w + w * y + y.sum()
for start in ([1.5, -2.25, 3.75], [0.5, 0.25, -1.0]):
    w = nn.Parameter(torch.tensor(start))
    loss = f(w).sum()
    loss.backward()
    made += [loss.detach(), w.grad]
"""
NO_SLOPES = (
    *("w > 0", "w == w.max()", "w != 1.5", "0.3 <= w", "torch.gt(w, 0)", "w.le(1)", "~(w > 0)"),
    *("torch.isfinite(w)", "torch.isclose(w, w)", "torch.logical_and(w > 0, w < 2)", "w.bool()"),
    *("w.long()", "w.int().float()", "w.to(torch.int64)", "w.type(torch.int32)", "w.abs().byte()"),
    *("(w > 0).type(torch.uint8)", "w.type_as(torch.ones(1, dtype=torch.int64))", "(w > 1).any()"),
)


@pytest.mark.parametrize("text", NO_SLOPES)
def test_truths_and_whole_numbers_pass_no_gradient(text: str, tmp_path: Path) -> None:
    beside(SLOPES.format(made=text), tmp_path)


COPIES = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5, -2.25, 3.75]))
    def forward(self, x):
        weight = {copy}
        {change}
        return x * weight
net = Net()
made = []
for x in (torch.ones(2, 3), torch.arange(6.0).view(2, 3)):
    loss = net(x).pow(2).sum()
    loss.backward()
    made += [loss.detach(), net.weight.grad.clone(), net.weight.detach()]
    net.zero_grad()
"""


@pytest.mark.parametrize("change", ["", "weight[0] = 2.0", "weight *= 2"])
@pytest.mark.parametrize("copy", ["self.weight.clone()", "torch.clone(self.weight)"])
def test_gradients_pass_the_copy_of_a_weight(copy: str, change: str, tmp_path: Path) -> None:
    beside(COPIES.format(copy=copy, change=change), tmp_path)


WHOLE = """import math, torch
def whole(numbers):
    return torch.tensor(numbers)
made = [{made}]
"""
OF_WHOLE = (
    *("whole(3).log()", "torch.exp(whole([0, 1]))", "torch.sigmoid(whole([0, 1]))"),
    *("whole([1, 4]).rsqrt()", "torch.atan(whole(1))", "torch.sin(whole([True, False]))"),
    "torch.linspace(torch.log(whole(2)), torch.log(whole(9)), 4)",
)
SIZES = (
    "torch.randint(0, 5, [2, 3])",
    "torch.randint(5, sizes)",
    "torch.randint(high=5, size=sizes)",
)


@pytest.mark.parametrize("text", OF_WHOLE)
def test_functions_take_whole_numbers(text: str, tmp_path: Path) -> None:
    beside(WHOLE.format(made=text), tmp_path)


@pytest.mark.parametrize("text", SIZES)
def test_whole_numbers_are_drawn_by_lists_of_sizes(text: str, tmp_path: Path) -> None:
    beside(f"import torch\nsizes = [2, 3]\nmade = [list({text}.shape)]\n", tmp_path)


EDGES = """import torch
from torch import nn
import torch.nn.functional as F
base = torch.tensor([[0.0, 1, 2, 0, -1], [2, 2, 2, 3, 2], [0, 0, 0, 0, 0]])
w = nn.Parameter(base)
u = nn.Parameter(base.flip(1).clone())
loss = ({value}).pow(2).sum()
loss.backward()
made = [loss.detach(), w.grad]
"""
AT_EDGES = (
    *("torch.linalg.norm(w, dim=1)", "torch.linalg.norm(w)", "w ** 0", "torch.pow(w, 0)"),
    *("torch.cumprod(w, 1)", "w.cumprod(dim=0)", "torch.atan2(w, u)", "torch.xlogy(w, u.abs())"),
    *("torch.logsumexp(w, 1)", "w.logsumexp(dim=(0, 1))", "w.logsumexp(-1, keepdim=True)"),
    "torch.logsumexp(w.masked_fill(base < 1, -torch.inf), 1).clamp(min=-9)",
)


@pytest.mark.parametrize("text", AT_EDGES)
def test_slopes_at_edges_are_torchs(text: str, tmp_path: Path) -> None:
    beside(EDGES.format(value=text), tmp_path)


AT_ONCE = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
    def forward(self, x):
        x = self.first(x)
        {line}
        return x
net = Net()
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
x = torch.arange(6.0).view(2, 3) ** 2
made = [net(x).detach()]
net.eval()
made += [net(x).detach(), nn.BatchNorm1d(3)(x).detach(), nn.BatchNorm1d(3, affine=False)(x)]
"""
LINES = (
    *("x = nn.BatchNorm1d(4)(x)", "x = nn.InstanceNorm1d(2)(x[None])", "x = nn.Dropout(0.0)(x)"),
    "norm = nn.BatchNorm1d(4, affine=False)\n        x = norm(x)",
)


@pytest.mark.parametrize("line", LINES)
def test_layers_that_are_run_where_they_are_made_train(line: str, tmp_path: Path) -> None:
    beside(AT_ONCE.format(line=line), tmp_path)


POOLS = """import torch
from torch import nn
import torch.nn.functional as F
w = nn.Parameter(torch.linspace(-2.0, 3.0, 2 * 4 * 7 * 5).view(2, 4, 7, 5).sin())
y = {value}
(y * torch.arange(float(y.numel())).sin().view(y.shape)).sum().backward()
made = [y.detach(), w.grad]
"""
OF_POOLS = (
    "nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False)(w)",
    "nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True)(w)",
    "F.avg_pool2d(w, 3, 2, (1, 0), ceil_mode=True, count_include_pad=False)",
    "F.avg_pool2d(w, (2, 3), divisor_override=2)",
    *("nn.AdaptiveAvgPool1d(3)(w.flatten(2))", "F.adaptive_avg_pool1d(w[0], 2)"),
    "nn.GroupNorm(2, 4, affine=False)(w)",
)


@pytest.mark.parametrize("text", OF_POOLS)
def test_windows_that_are_cut_off_and_norms_without_weights(text: str, tmp_path: Path) -> None:
    beside(POOLS.format(value=text), tmp_path)


def test_how_much_transformers_logs_is_left_out(tmp_path: Path) -> None:
    script = "import torch, transformers\ntransformers.logging.set_verbosity_error()\n"
    found = ported(script + "made = [torch.FloatTensor([1, 2], device='cpu')]\n")
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert loaded(found.text, tmp_path)["made"][0].asnumpy().tolist() == [1, 2]


LISTED = """import torch
if "sinc" in dir(torch):
    sinc = torch.sinc
else:
    def sinc(x):
        return torch.no_such_name(x)
made = [sinc(torch.tensor([0.5, 0.0])), 2 if "no_such_name" not in dir(torch) else 1]
"""


def test_what_torch_lists_is_asked_of_the_port(tmp_path: Path) -> None:
    beside(LISTED, tmp_path)


THROUGH = """import torch
from torch import nn
w = nn.Parameter(torch.linspace(-1.0, 2.0, 20).view(4, 5))
kept = torch.zeros(4, 5)
y = w * 2
{line}
(y * w).sum().backward()
made = [y.detach(), w.grad, kept]
"""
SET = (
    *("y.view(-1)[::6] = 0", "kept.T[0] = 3", "y.t()[w.t() > 0] = 0.5", "y[0].view(-1)[1] = 3"),
    *("y.transpose(0, 1)[1] = w[:, 0]", "kept.view(-1)[torch.tensor([1, 5])] = 2.5"),
    *("y.view(-1)[::2] *= 2", "kept.t()[0] -= 2", "y.transpose(0, 1)[0] += w[:, 1]"),
    "kept = torch.zeros(4, 5).numpy(); kept.reshape(-1)[1] = 3; kept = torch.tensor(kept)",
    "kept = torch.zeros(4, 5).numpy()\nkept.T[1] = 3\nkept = torch.tensor(kept)",
    *(
        "z = y.view(2, 10)\nz[:, 0] = 0",
        "z = y.view(-1)\nz[z > 0] *= 2",
    ),
    *("z = y.unsqueeze(0)\nz[0, 1] = 3", "y = y.view(2, 10)\ny[0] = 1\ny = y.view(4, 5)"),
)


@pytest.mark.parametrize("line", SET)
def test_what_is_set_in_a_view_is_set_in_the_tensor(line: str, tmp_path: Path) -> None:
    beside(THROUGH.format(line=line), tmp_path)


FORMS = """import torch
from torch import nn
import torch.nn.functional as F
made = []
x = torch.sin(torch.arange(24.0)).view(2, 3, 4)
made.append(x.diagonal(dim1=1, dim2=2))
made.append(F.elu(x, alpha=0.5))
layer = nn.Conv2d(3, 2, 1, bias=None)
made.append([*layer.weight.shape, int(layer.bias is None)])
room = torch.zeros(5)
room.index_copy_(0, torch.tensor([0, 4]), torch.tensor([5.0, 6.0]))
room.scatter_reduce_(0, torch.tensor([0, 1, 1]), torch.tensor([2.0, 3.0, 4.0]), reduce="sum")
made.append(room)
table = nn.Parameter(torch.arange(12.0).view(4, 3) / 7)
opt = torch.optim.SGD([table], lr=0.1)
for _ in range(3):
    loss = F.embedding(torch.tensor([0, 2, -1 + 4]), table, padding_idx=-1).pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.item())
"""


def test_forms_that_were_refused(tmp_path: Path) -> None:
    found = beside(FORMS, tmp_path)
    said = [edit.reason for edit in found.edits if edit.kind in ("refused", "unproven")]
    assert len(said) == 1, said
    assert "record all that runs" in said[0]  # a table that is no layer's


BYTES = """import numpy as np
import torch
from torch import nn
made = []
x = torch.arange(12.0).view(3, 4)
mask = torch.from_numpy((np.arange(12).reshape(3, 4) % 3 == 0).astype(np.uint8))
mask[0] = 0
made.append(x[mask])
made.append(x[torch.tensor([1, 0, 1], dtype=torch.uint8)])
many = torch.arange(48.0).view(2, 3, 8)
with torch.no_grad():
    made.append(many[many[..., 0] % 16 == 0, :])
    made.append(many[many[..., 0] > 8, 1:3])
"""


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")  # torch's own advice
def test_bytes_between_brackets_are_truths(tmp_path: Path) -> None:
    beside(BYTES, tmp_path)


ALONE = """import os
import torch
import torch.distributed as dist
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29571")
made = [int(dist.is_initialized())]
dist.init_process_group(backend="gloo")
made.append(int(dist.is_initialized()))
number = torch.tensor([2.0])
dist.all_reduce(number)
made += [number, dist.get_world_size()]
dist.destroy_process_group()
made.append(int(dist.is_initialized()))
"""


def test_a_process_that_is_alone_has_a_group_of_one(tmp_path: Path) -> None:
    beside(ALONE, tmp_path)


OPTIONAL = """import torch
from torch import nn
from types import SimpleNamespace


def train(model, batches, opt, cfg):
    if cfg.use_fp16 and cfg.fsdp:
        scaler = torch.cuda.amp.GradScaler(init_scale=2.0)
    elif cfg.use_fp16 and not cfg.fsdp:
        scaler = torch.cuda.amp.GradScaler()
    losses = []
    for step, (x, y) in enumerate(batches):
        loss = nn.functional.mse_loss(model(x), y)
        loss = loss / 2
        losses.append(loss.detach().item())
        if cfg.use_fp16:
            scaler.scale(loss).backward()
            if (step + 1) % 2 == 0:
                scaler.unscale_(opt)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
        else:
            loss.backward()
            if (step + 1) % 2 == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
    return losses


made = []
net = nn.Linear(3, 1)
with torch.no_grad():
    net.weight.fill_(0.3)
    net.bias.fill_(0.1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
batches = [(torch.sin(torch.arange(6.0) + k).view(2, 3), torch.ones(2, 1)) for k in range(6)]
made += train(net, batches, opt, SimpleNamespace(use_fp16=False, fsdp=False))
"""


def test_a_scaler_that_one_of_several_branches_makes_may_be_none(tmp_path: Path) -> None:
    beside(OPTIONAL, tmp_path)


ASKED = """import torch
from torch import Tensor, device, dtype, nn


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 2)

    @property
    def device(self) -> device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> dtype:
        return next(self.parameters()).dtype

    def forward(self, x: Tensor):
        return self.line(x)


@torch.no_grad
def run(n):
    return torch.ones(2) * n if n < 2 else run(n - 1) + 1


made = [run(3), M()(torch.ones(1, 2)).shape[1]]
"""


def test_methods_named_like_what_they_give_and_bare_decorators(tmp_path: Path) -> None:
    beside(ASKED, tmp_path)


def test_forked_draws_are_told_the_device() -> None:
    script = "import torch\nwith torch.random.fork_rng(devices=[0]):\n    torch.manual_seed(1)\n"
    text = ported(script, load_target("torch_npu")).text
    assert 'torch.random.fork_rng(devices=[0], device_type="npu")' in text


TRUTH = """import torch
from torch import nn


class Trainer:
    def __init__(self, net, amp):
        self.net, self.amp = net, amp
        self.scaler = torch.cuda.amp.GradScaler() if self.amp else None
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def fit(self, batches):
        losses = []
        for x, y in batches:
            self.opt.zero_grad()
            {test}:
                with torch.cuda.amp.autocast():
                    loss = nn.functional.mse_loss(self.net(x), y)
            else:
                loss = nn.functional.mse_loss(self.net(x), y)
            losses.append(loss.item())
            {test}:
                self.scaler.scale(loss).backward()
                self.scaler.unscale_(self.opt)
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                self.scaler.step(self.opt)
                self.scaler.update()
            else:
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                self.opt.step()
        return losses


net = nn.Linear(3, 1)
with torch.no_grad():
    net.weight.fill_(0.3)
    net.bias.fill_(0.1)
batches = [(torch.sin(torch.arange(6.0) + k).view(2, 3), torch.ones(2, 1)) for k in range(6)]
made = Trainer(net, amp=False).fit(batches)
"""


@pytest.mark.parametrize(
    "test", ["if self.scaler", "if self.scaler and self.amp", "if not (not self.scaler)"]
)
def test_what_stands_for_no_scaler_is_none_where_its_truth_is_asked(
    test: str, tmp_path: Path
) -> None:
    beside(TRUTH.format(test=test), tmp_path)
