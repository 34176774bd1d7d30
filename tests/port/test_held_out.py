"""What public scripts showed that were drawn by lot: smallest scripts, beside torch."""

from __future__ import annotations

import pytest
from mindspore import ops

from mpcore.errors import BackendError
from mpcore_mindspore.guard import guarded
from mpcore_port.engine import port_text
from mpcore_port.targets import load_target
from mpcore_port.verify.standing import _bare

from .ports import FILLED, TARGET, beside, loaded, ported

PREPARED = """import torch
from torch import nn
from accelerate import Accelerator
class Trainer(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.accelerator = Accelerator()
        self.net = net
        self.optim = torch.optim.Adam(net.parameters(), lr=0.01)
        self.net, self.optim = self.accelerator.prepare(self.net, self.optim)
made = [len(Trainer(nn.Linear(2, 2)).optim.param_groups)]
"""


def test_an_optimizer_that_a_module_holds_is_prepared(tmp_path):
    assert loaded(ported(PREPARED).text, tmp_path)["made"] == [1]


OWN_STEP = (
    FILLED
    + """
class Wide(torch.optim.SGD):
    pass
def train(scaler, optimizer, net, x, where):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer, where=where)
    scaler.update()
"""
)


def test_a_step_through_a_scaler_with_arguments_of_its_own_is_unproven(tmp_path):
    found = ported(OWN_STEP)
    (told,) = [one for one in found.edits if "arguments of its own: an opt" in one.reason]
    assert told.kind == "unproven"
    port = loaded(found.text, tmp_path)["port"]

    class Own:
        def step(self, where: float) -> float:
            return where

    assert port.GradScaler(enabled=False).step(Own(), where=0.5) == 0.5
    with pytest.raises(BackendError, match="takes no arguments"):
        port.GradScaler(enabled=False).step(object(), where=0.5)


AROUND = (
    FILLED
    + """
from types import SimpleNamespace
class Around:
    def __init__(self, optimizer):
        self.optimizer = optimizer
    @property
    def param_groups(self):
        return self.optimizer.param_groups
    def zero_grad(self):
        self.optimizer.zero_grad()
    def step(self, where):
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * (1 - where)
        self.optimizer.step()
class Step:
    def __call__(self, task, x, scaler):
        loss = task.model(x).square().mean()
        self.back(task, loss, scaler)
        return loss.item()
    @staticmethod
    def back(task, loss: torch.Tensor, scaler):
        task.optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(task.optimizer, where=task.where)
            scaler.update()
        else:
            loss.backward()
            task.optimizer.step(where=task.where)
net = filled(nn.Linear(3, 2))
task = SimpleNamespace(model=net, where=0.0)
task.optimizer = Around(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
step = Step()
for number in range(6):
    task.where = number / 10
    made.append(step(task, torch.ones(4, 3), torch.amp.GradScaler("cpu") if number > 2 else None))
made += list(net.parameters())
"""
)


def test_an_optimizer_around_another_steps_with_its_arguments(tmp_path):
    found = beside(AROUND, tmp_path)
    told = [one for one in found.edits if "arguments of its own: an opt" in one.reason]
    assert {one.kind for one in told} == {"unproven"}


def test_torchs_own_optimizer_steps_without_arguments():
    script = "import torch\ndef go(net):\n    own = torch.optim.SGD(net.parameters(), lr=0.1)\n"
    (told,) = [one for one in ported(script + "    own.step(where=1)\n").edits if one.line == 4]
    assert told.kind == "refused"


PLACES = """import torch
from torch import nn
def kinds(net):
    return [isinstance(m, torch.nn.modules.Embedding) for m in net]
made = [sum(kinds([nn.Embedding(3, 2), nn.Linear(2, 2)]))]
"""


def test_layers_are_found_where_torch_lists_them_again(tmp_path):
    found = beside(PLACES, tmp_path)
    assert not [one for one in found.edits if one.kind == "refused"]


NONE_HELD = """import torch
def sample_of(batch, keys):
    sample = {"input": {}, "valid": None}
    for key in keys:
        sample["input"][key] = batch[key][0]
    sample["valid"] = batch["valid"][0]
    return sample
def forget(net) -> None:
    net.zero_grad()
made = [sample_of({"x": [torch.ones(2)], "valid": [1]}, ["x"])["valid"]]
"""


def test_none_is_no_holder_of_what_is_changed(tmp_path):
    beside(NONE_HELD, tmp_path)


def test_what_fails_later_hides_no_refusal():
    def fails():
        with guarded():
            ops.ones(())  # MindSpore's fails on CPU, when it runs
            return {}["first"]

    with pytest.raises(KeyError, match="first") as seen:
        fails()
    assert "operation before it failed as well" in seen.value.__notes__[0]
    assert ops.ones(2).sum().item() == 2


NONE = """import torch
def train_one_epoch(net, opt, batches, scaler, amp):
    for x in batches:
        opt.zero_grad()
        with torch.cuda.amp.autocast(enabled=amp):
            loss = net(x).mean()
        if amp:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            opt.step()
def main(net, opt, batches, amp):
    if amp:
        scaler = torch.cuda.amp.GradScaler()
    else:
        scaler = None
    train_one_epoch(net, opt, batches, scaler, amp)
"""


def test_where_none_becomes_a_scaler_steps_ask_whether_it_is_one():
    found = port_text(NONE, TARGET)
    assert "scaler = ms.amp.StaticLossScaler(1.0)" in found.text
    (told,) = [one for one in found.edits if one.old == "None"]
    assert told.kind == "exact"
    assert "isinstance(loss_scaler, ms.amp.DynamicLossScaler) or finite" in found.text


def test_half_of_what_a_function_loads_is_unproven():
    found = port_text("import torch\nfrom lib import load\nnet = load('a').half()\n", TARGET)
    assert "port.half(load('a'))" in found.text
    assert "unproven" in {one.kind for one in found.edits}


def test_beside_torch_a_scaler_steps_as_before(tmp_path):
    script = FILLED + (
        "net = filled(nn.Linear(2, 1))\nopt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "scaler = torch.amp.GradScaler('cpu', init_scale=4.0)\n"
        "scaler.scale(net(torch.ones(1, 2)).sum()).backward()\nscaler.step(opt)\nscaler.update()\n"
        "made = [p.detach() for p in net.parameters()]\n"
    )
    beside(script, tmp_path)


def test_values_that_are_shown_are_plain_in_a_step_and_its_script():
    line = "'{} {}'.format(1, port.shown(100. * (i + 1) / len(port.shown(all))), lr=port.shown(r))"
    assert _bare(line) == "'{} {}'.format(1, 100. * (i + 1) / len(all), lr=r)"
    assert _bare("port.shown(a(b(c)))") == "a(b(c))"


CAST = """import torch
def cast(inputs, to_type):
    if isinstance(inputs, torch.Tensor):
        return inputs.to(to_type)
    return [cast(item, to_type) for item in inputs]
def move(inputs, number):
    return inputs.to(number)
move([], int("0"))
"""


def test_what_a_function_hands_to_itself_alone_is_no_device():
    text = port_text(CAST, load_target("torch_npu")).text
    assert "inputs.to(to_type)" in text
    assert 'inputs.to(f"npu:{number}")' in text
