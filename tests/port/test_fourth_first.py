"""What scripts that nobody had tuned for asked for, port beside original."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import FILLED, beside, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

MAYBE = """import torch
made = []
def step(model, opt, amp, cast, x):
    made.append(amp is None)
    made.append(cast is None)
    loss = model(x).sum()
    loss.backward()
    opt.step()
def main(use):
    model = torch.nn.Linear(2, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    {none}
    cast = None
    if use:
        from apex import amp
        from torch.cuda.amp import autocast as cast, GradScaler
        model, opt = amp.initialize(model, opt, opt_level="O1")
    made.append(scaler is None)
    step(model, opt, amp, cast, torch.ones(2, 2))
main(False)
"""


@pytest.mark.parametrize("none", ["amp = scaler = None", "amp, scaler = None, None"])
def test_imports_of_a_branch_are_none_where_it_did_not_run(none: str, tmp_path: Path) -> None:
    script = MAYBE.format(none=none)
    found = beside(script, tmp_path)
    assert "amp = port.apex" in found.text
    assert "cast = port.autocast" in found.text
    assert "port.apex, scaler" not in found.text


def test_imports_that_may_fail_are_there() -> None:
    script = """amp = None
try:
    from apex import amp
except ImportError:
    amp = None
def main(model, opt):
    if amp is not None:
        model, opt = amp.initialize(model, opt)
"""
    assert "amp = port.apex" not in ported(script).text


ROWS = (
    FILLED
    + """net = filled(nn.Embedding(4, 2))
rows = net.weight.data
rows[1].copy_(rows[0])
rows[2].data.copy_(rows[0])
made.append(net.weight.detach())
net.weight.data[3].data.copy_(rows[0])
made.append(net.weight.detach())
"""
)


def test_rows_of_weights_are_written(tmp_path: Path) -> None:
    beside(ROWS, tmp_path)


STREAMS = """import torch
class Pair:
    def __init__(self, tensors, mask):
        self.tensors = tensors
        self.mask = mask
    def record_stream(self, *args, **kwargs):
        self.tensors.record_stream(*args, **kwargs)
        if self.mask is not None:
            self.mask.record_stream(*args, **kwargs)
made = []
pair = Pair(torch.ones(2), torch.zeros(2))
made.append(pair.tensors)
"""


def test_what_asks_for_no_argument_takes_starred_ones() -> None:
    found = ported(STREAMS)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


TRACED = (
    FILLED
    + """net = filled(nn.Linear(2, 3))
made.append(net(torch.ones(1, 2)))
net.act = torch.jit.trace(nn.ReLU(), torch.randn(1, 3))
traced = torch.jit.trace(net, torch.ones(1, 2))
made.append(traced(torch.ones(1, 2)))
"""
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_traced_runs_as_it_is(tmp_path: Path) -> None:
    beside(TRACED, tmp_path)
    kept = TRACED + 'traced.save("net.pt")\n'
    assert [edit for edit in ported(kept).edits if edit.kind == "refused"]


def test_settings_of_torchs_process_are_asked_for() -> None:
    script = """import torch
from transformers.utils import is_torch_bf16_available, is_torch_tf32_available
threads = torch.get_num_threads()
torch.set_num_threads(1)
dtype = torch.bfloat16 if is_torch_bf16_available() else torch.float16
if is_torch_tf32_available():
    torch.backends.cuda.matmul.allow_tf32 = True
torch.set_num_threads(threads)
"""
    found = ported(script)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert "runtime_num_threads" in found.text


def test_accelerate_writes_the_weights_alone(tmp_path: Path) -> None:
    script = f"""import torch
from accelerate import Accelerator
from safetensors.torch import load_file
accelerator = Accelerator()
net = torch.nn.Linear(2, 3)
net = accelerator.prepare(net)
accelerator.save_model(net, {str(tmp_path / "kept")!r})
made = load_file({str(tmp_path / "kept" / "model.safetensors")!r})
accelerator.save_model(net, {str(tmp_path / "whole")!r}, safe_serialization=False)
other = torch.load({str(tmp_path / "whole" / "pytorch_model.bin")!r})
weight = net.weight
"""
    held = loaded(ported(script).text, tmp_path)
    assert set(held["made"]) == set(held["other"]) == {"weight", "bias"}
    assert (held["made"]["weight"].asnumpy() == held["weight"].asnumpy()).all()


FROZEN = """import torch
from other import VQ
net = VQ().to("cuda")
net.requires_grad_(False)
net.eval().requires_grad_(False)
net.to("cuda").eval().requires_grad_(False)
"""


def test_networks_of_other_files_are_frozen() -> None:
    text = ported(FROZEN).text
    assert text.count("port.requires_grad_(") == 3
    assert ".requires_grad_(False)" not in text


PLACES = (
    FILLED
    + """class Losses(nn.Module):
    def __init__(self, wanted):
        super().__init__()
        {held}
    def forward(self, x):
        parts = [one(x).pow(2).sum() for one in self.parts if one is not None]
        return sum(parts) + len(self.parts)
net = filled(Losses([True, False, True]))
loss = net(torch.ones(1, 2))
loss.backward()
made += [loss.detach(), net.parts[2].weight.grad, net.parts[1] is None]
made.append([name for name, _ in net.named_parameters()] == {names})
"""
)
NAMES = '["parts.0.weight", "parts.0.bias", "parts.2.weight", "parts.2.bias"]'


@pytest.mark.parametrize(
    "held",
    [
        "self.parts = nn.ModuleList([nn.Linear(2, 1) if one else None for one in wanted])",
        "some = [nn.Linear(2, 1) if one else None for one in wanted]\n"
        "        self.parts = nn.ModuleList(some)",
    ],
)
def test_lists_of_networks_have_empty_places(held: str, tmp_path: Path) -> None:
    beside(PLACES.format(held=held, names=NAMES), tmp_path)


CHECKS = (
    FILLED
    + """class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self._init_check(size)
        self._params = size
        self._scope = nn.Linear(size, 1)
    def _init_check(self, size):
        if size != 2:
            raise ValueError("size")
    def forward(self, x):
        return self._scope(x) * self._params
net = filled(Net(2))
loss = net(torch.ones(1, 2)).sum()
loss.backward()
made += [loss.detach(), net._scope.weight.grad]
"""
)


def test_hidden_names_of_cells_are_left_to_them(tmp_path: Path) -> None:
    beside(CHECKS, tmp_path)


HEIRS = """import torch
try:
    from apex.normalization import FusedLayerNorm as Norm
except ImportError:
    from torch.nn import LayerNorm as Norm
class Scaled(Norm):
    {init}
    def forward(self, x):
        return super().forward(x) * 2
made = []
net = Scaled({given})
loss = (net(torch.arange(8.0).view(2, 4)) ** 2 * torch.arange(4.0)).sum()
loss.backward()
made += [loss.detach(), net.weight.grad, net.bias.grad]
"""
INIT = """def __init__(self, size, eps=1e-3):
        super().__init__(size, eps=eps, elementwise_affine=True)
        self.size = size
"""


@pytest.mark.parametrize(("init", "given"), [(INIT, "4"), ("", "(4,), 1e-3"), ("", "4, eps=1e-3")])
def test_norms_of_apex_have_heirs(init: str, given: str, tmp_path: Path) -> None:
    beside(HEIRS.format(init=init, given=given), tmp_path)


OWN_STEP = (
    FILLED
    + """from torch.optim import Optimizer
def moved(p, held, grad, lr):
    grad = grad.float()
    held.mul_(0.9).add_(grad + 0.1 * p.float(), alpha=0.1)
    p.add_(held, alpha=-lr)
class Own(Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr))
    def step(self, closure=None, scale=1.0):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["held"] = torch.zeros_like(p.data)
                moved(p.data, state["held"], p.grad.data / scale, group["lr"])
def back(loss, scale):
    loss = loss * scale
    loss.backward()
    return loss
net = filled(nn.Linear(2, 1))
opt = Own(net.parameters())
for i in range(2):
    loss = net(torch.ones(3, 2) + i).pow(2).mean()
    loss = back(loss, 4.0)
    opt.step(scale=4.0)
    net.zero_grad()
    made += [loss.detach(), net.weight.detach().clone()]
"""
)


def test_steps_of_own_optimizers_are_given_numbers(tmp_path: Path) -> None:
    beside(OWN_STEP, tmp_path)


FILLS = """import torch
made = []
x = torch.arange(6.0).view(2, 3)
mask = x > 2
for size in torch.tensor([[3, 4], [5, 2]]):
    high, wide = size
    made.append(x.masked_fill(mask, max(high, wide) * 8))
    made.append(x.masked_fill(~mask, size[0]))
    made.append(x.masked_fill(mask, 2 * 3))
made.append(x.masked_fill(mask, x.min()))
made.append(x.masked_fill(mask, float(0)))
"""


def test_masks_are_filled_with_numbers_of_other_dtypes(tmp_path: Path) -> None:
    found = beside(FILLS, tmp_path)
    assert "x.masked_fill(mask, float(0))" in found.text
