"""What scripts of a wider mix showed: tensors through names, gradient switches, own objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mindspore as ms
import pytest
from mindspore import nn, ops

import mpcore_port_runtime as port
from mpcore_mindspore.shims import pynative_executor
from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options

from .ports import FILLED, NET, TARGET, beside, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

# --- tensors that a name was given out of an attribute --------------------------------------------

THROUGH_A_NAME = f"""{FILLED}
from torch.optim import Optimizer
{NET}
class Counted(Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr))
        self.total, self.n = torch.zeros(2), 0
        self.total = torch.zeros(2)
    @torch.no_grad()
    def step(self, closure=None):
        s = self.total
        s += 1
        n = self.n
        n += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"])
class Meter:
    def __init__(self):
        self.count = torch.zeros(2)
        self.calls = 3
    def add(self, x):
        c = self.count
        c += x
        calls = self.calls
        calls += 1
net = Net()
opt, meter = Counted(net.parameters()), Meter()
for i in range(3):
    opt.zero_grad()
    loss = (net(torch.ones(2, 3)) ** 2).mean()
    loss.backward()
    opt.step()
    meter.add(torch.tensor([1.0, 2.0]))
    made.append(loss.item())
held = vars(meter)["count"]
made += [vars(opt)["total"], held, opt.n, meter.calls]
"""


def test_an_attributes_tensor_is_changed_through_a_name(tmp_path: Path) -> None:
    found = beside(THROUGH_A_NAME, tmp_path)
    assert "n += 1" in found.text
    assert "calls += 1" in found.text


# --- what is asked by getattr ---------------------------------------------------------------------


def test_whether_a_gradient_is_wanted_is_asked_by_getattr(tmp_path: Path) -> None:
    script = f"""{FILLED}{NET}
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(3):
    opt.zero_grad()
    loss = net(torch.ones(2, 3)).pow(2).mean() if i != 1 else torch.zeros(())
    if getattr(loss, "requires_grad", False):
        loss.backward()
        opt.step()
        made.append(i)
made += [net.weight, getattr(3, "requires_grad", False)]
"""
    found = beside(script, tmp_path)
    said = {edit.kind for edit in found.edits if edit.old.startswith("getattr(loss")}
    assert said == {"unproven"}


def test_a_parameter_says_by_itself_what_it_wants() -> None:
    asked = "[getattr(p, 'requires_grad', False) for p in net]"
    assert "wants_grad" not in ported(f"import torch\ndef f(net):\n    return {asked}\n").text


# --- words for the device that are gone -----------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        ('device == "cuda"', []),
        ('torch.autocast("cuda", torch.float16)', []),
        ('"cuda" in device', [3]),
    ],
)
def test_a_word_that_is_asked_for_by_the_runtime_is_not_told_of(
    asked: str, lines: list[int]
) -> None:
    found = ported(f"import torch\ndef f(device):\n    return {asked}\n")
    assert [edit.line for edit in found.edits if "is kept says" in edit.reason] == lines


# --- methods of other objects ---------------------------------------------------------------------

OTHERS = """import torch
class Scaling:
    def __getattr__(self, name):
        return lambda x: (x - 1) / 2
class Held:
    def __init__(self):
        self.scaling = {"energy": Scaling()}
def scaled(held, x):
    aim = torch.abs(x)
    s = held.scaling["energy"]
    return [s.norm(aim), s.std(aim), held.scaling["energy"].mean(torch.ones(3)), s.sort(aim)]
x = torch.arange(6.0).view(2, 3)
made = [*scaled(Held(), x), x.std(0), x.norm(2), x.mean(dim=1)]
"""


def test_a_tensor_where_a_tensor_takes_an_axis_is_another_objects(tmp_path: Path) -> None:
    found = beside(OTHERS, tmp_path)
    assert ", s.std(aim)" in found.text


def test_methods_that_a_class_has_are_unproven_of_what_nothing_says(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(
        "import torch\nclass Held:\n    def size(self, part=0):\n        return part\n"
    )
    (tmp_path / "train.py").write_text(
        "import torch\nfrom held import Held\ndef f(held, x):\n"
        "    y = torch.abs(x)\n    return held.norm(2), held.size(), y.size()\n"
    )
    files = port_tree(walk(tmp_path), TARGET, Options()).files
    edits = next(one for one in files if one.source.path.endswith("train.py")).edits
    said = {edit.old: edit.kind for edit in edits if edit.line == 5}
    assert said["held.size()"] == "unproven"
    assert said["y.size()"] == "exact"


# --- switches of gradients ------------------------------------------------------------------------

STEPPED = f"""{FILLED}{NET}
class Trainer:
    def __init__(self):
        self.net = filled(Net())
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def step(self, x):
        torch.set_grad_enabled(True)
        loss = (self.net(x) ** 2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        torch.set_grad_enabled(False)
        return loss.item()
    def guarded(self, x):
        try:
            torch.set_grad_enabled(True)
            loss = (self.net(x) ** 2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        finally:
            torch.set_grad_enabled(False)
        return loss.item()
trainer = Trainer()
for i in range(3):
    made.append(trainer.step(torch.ones(2, 3) * i))
    made.append(trainer.guarded(torch.ones(2, 3)))
    made.append(float(torch.is_grad_enabled()))
torch.set_grad_enabled(True)
"""


def test_a_switch_in_front_of_a_step_and_behind_it(tmp_path: Path) -> None:
    found = beside(STEPPED, tmp_path)
    assert found.text.count("port.set_grad_enabled(") == 5


def test_a_switch_over_a_function_and_in_a_choice(tmp_path: Path) -> None:
    script = f"""{FILLED}{NET}
from contextlib import ExitStack, nullcontext
@torch.set_grad_enabled(False)
def asked(n):
    inner = asked(n - 1) if n else []
    return [float(torch.is_grad_enabled()), *inner]
@torch.set_grad_enabled(True)
def on(n):
    return [float(torch.is_grad_enabled()), *(on(n - 1) if n else [])]
made += asked(2)
for train in (True, False):
    with nullcontext() if train else torch.set_grad_enabled(False):
        made.append(float(torch.is_grad_enabled()))
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(train))
        made.append(float(torch.is_grad_enabled()))
        made += on(2)
        made.append(float(torch.is_grad_enabled()))
made.append(float(torch.is_grad_enabled()))
"""
    beside(script, tmp_path)


def test_switches_around_a_part_of_a_loss_are_refused_together() -> None:
    script = """import torch
def train(net, data, opt):
    for x in data:
        opt.zero_grad()
        torch.set_grad_enabled(False)
        aim = net(x)
        torch.set_grad_enabled(True)
        loss = net(x + aim).mean()
        loss.backward()
        opt.step()
"""
    refused = [edit.line for edit in ported(script).edits if edit.kind == "refused"]
    assert refused == [5, 7]


# --- a loop that is ported alone, and the runtime's scaler ----------------------------------------


@pytest.mark.parametrize("behind", ["", "        total = loss.item()\n"])
def test_a_loop_that_wants_a_scaler_of_mindspores_says_so(tmp_path: Path, behind: str) -> None:
    script = f"""import torch
def train(net, data, opt, scaler):
    for x in data:
        opt.zero_grad()
        loss = net(x).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
{behind}"""
    train = loaded(ported(script).text, tmp_path)["train"]
    net, scaler = nn.Dense(3, 2), port.GradScaler(init_scale=4.0, growth_interval=1)
    opt = nn.SGD(net.trainable_params(), 0.1)
    with pytest.raises(TypeError, match=r"port\.loss_scaler"):
        train(net, [ops.ones((2, 3))], opt, scaler)
    pynative_executor.clear_res()  # else MindSpore goes on recording what the raised step began
    train(net, [ops.ones((2, 3))], opt, port.loss_scaler(scaler))
    assert scaler.get_scale() == 8.0
    train(net, [ops.ones((2, 3))], opt, ms.amp.DynamicLossScaler(4.0, 2, 1))


# --- two trainers, and a scaler that one branch of the step has -----------------------------------

TWO_TRAINERS = f"""{FILLED}
from contextlib import nullcontext
class Trainer:
    def __init__(self, mixed, at):
        self.model = filled(nn.Linear(4, 1, bias=False))
        self.params = list(self.model.parameters())
        self.opt = torch.optim.SGD(self.params, lr=0.1)
        self.mixed = mixed
        self.scaler = torch.amp.GradScaler("cpu", init_scale=at) if mixed else None
    def step(self, x):
        for p in self.params:
            p.grad = None
        with torch.autocast("cpu", dtype=torch.float16) if self.mixed else nullcontext():
            out = self.model(x)
            loss = (out.float() * 2000).sum()
        if not self.mixed:
            loss.backward()
            self.opt.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
        made.append(loss.item())
        return out, loss
old, now, plain = Trainer(True, 2.0 ** 20), Trainer(True, 64.0), Trainer(False, 3.0)
for i in range(6):
    now.step(torch.full((2, 4), 0.5))
    made.append(now.scaler.get_scale())
plain.step(torch.arange(8.0).view(2, 4))
"""


def test_a_loss_is_scaled_by_the_scaler_of_the_branch_that_has_one(tmp_path: Path) -> None:
    found = ported(TWO_TRAINERS)
    assert "self.model, scaler=self.scaler)" in found.text
    beside(TWO_TRAINERS, tmp_path)


# --- a tensor under a name that an array gets further down ----------------------------------------

AN_ARRAY_LATER = """import cv2
import torch
def masks(loader, net):
    for x, sizes in loader:
        found = net(x)
        found = torch.sigmoid(found)
        for mask, size in zip(found, sizes):
            mask = mask.cpu().numpy()
            mask = cv2.resize(mask, size)
"""


def test_a_tensor_becomes_an_array_under_a_name_of_something_else() -> None:
    assert "mask = mask.asnumpy()" in ported(AN_ARRAY_LATER).text


# --- a scaler of features above, under the same name ----------------------------------------------

TWO_SCALERS = f"""{FILLED}
import collections
scaler = collections.Counter(a=1)
made += [float(scaler.total()), float(scaler["a"])]
net = filled(nn.Linear(3, 2, bias=False))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
for epoch in range(2):
    for i in range(3):
        opt.zero_grad()
        loss = (net(torch.ones(2, 3) * i) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        made.append(loss.item())
made.append(scaler.get_scale())
"""


def test_a_loop_whose_scaler_has_a_name_of_something_above_is_mindspores(tmp_path: Path) -> None:
    found = beside(TWO_SCALERS, tmp_path)
    assert "DynamicLossScaler" in found.text
    assert "scaler.total()" in found.text
