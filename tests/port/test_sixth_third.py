"""What a lot showed: names that a text says, optimizers with a way back of their own, hooks."""

from __future__ import annotations

from mpcore_port.status import status_of

from .ports import FILLED, beside, compare, ported

HEAD = (
    FILLED
    + """
net = filled(nn.Linear(3, 1))
data = [(torch.arange(6.0).view(2, 3) / (n + 1), torch.ones(2, 1) * n) for n in range(4)]
criterion = nn.MSELoss()
"""
)
BY_TEXT = """
name, layer = "Adam", "ReLU"
optimizer = eval("torch.optim." + name)(net.parameters(), lr=0.05)
second = eval(f"torch.optim.{name}W")(net.parameters(), lr=0.01)
act = eval("nn." + layer)()
kind = eval("torch.float32")
for x, y in data:
    optimizer.zero_grad()
    loss = criterion(act(net(x.to(kind))), y)
    loss.backward()
    optimizer.step()
    made.append(loss.item())
made += [p.detach() for p in net.parameters()]
"""


def test_a_name_of_torch_that_a_text_says(tmp_path):
    """The text kept torch's name, and the port raised NameError where the optimizer is made."""
    script = HEAD + BY_TEXT.replace('eval(f"torch.optim.{name}W")', "torch.optim.SGD")
    found = beside(script, tmp_path)
    assert "eval(" not in found.text


def test_a_name_in_an_f_string():
    """As one that is added up."""
    found = ported(HEAD + BY_TEXT)
    assert "getattr(port.optimizers, name)" in found.text
    assert "eval(" not in found.text or "{name}W" in found.text


def test_a_text_that_is_no_name_is_reported():
    """What it says is known when it runs: torch's names in it are none of the port."""
    text = "import torch\ndef make(arch, n):\n    return eval(arch)(n), eval('torch.zeros(' + n)\n"
    found = ported(text)
    lines = [edit for edit in found.edits if edit.kind == "unproven" and edit.rule == "evaluated"]
    assert [edit.old for edit in lines] == ["eval(arch)", "eval('torch.zeros(' + n)"]


OWN_WAY = """
class Halved:
    def __init__(self, inner):
        self.inner = inner
    def zero_grad(self):
        self.inner.zero_grad()
    def step(self):
        self.inner.step()
    def backward(self, loss, update=True):
        (loss * 4.0).backward()
        for group in self.inner.param_groups:
            for one in group["params"]:
                one.grad.mul_(0.25)
def setup(half):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return net, (Halved(optimizer) if half else optimizer), criterion
def train(model, optim, criterion, half):
    for x, y in data:
        optim.zero_grad()
        loss = criterion(model(x), y)
        if half:
            optim.backward(loss, update=False)
        else:
            loss.backward()
        optim.step()
        made.append(loss.item())
def main(half):
    model, optim, loss_of = setup(half)
    train(model, optim, loss_of, half)
main(True)
main(False)
made += [p.detach() for p in net.parameters()]
"""


def test_an_optimizer_with_a_way_back_of_its_own(tmp_path):
    """It was taken for the loss, and what sets up the optimizer for what makes the loss."""
    found = beside(HEAD + OWN_WAY, tmp_path)
    assert "model, optim, loss_of = setup(half)\n    train(" in found.text


REDUCED = """
import torch
def train(net, optimizer, criterion, data, many):
    for x, y in data:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        if many:
            loss.backward()
            net.mean_params()
        else:
            optimizer.backward(loss, update=False)
        optimizer.step()
"""


def test_a_method_that_does_something_to_parameters():
    """It was called in front of the loss, for parameters that it might return."""
    found = ported(REDUCED)
    assert found.text.count("mean_params()") == 1


HOOKS = """
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default as hooks, powerSGD, debugging
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
net.register_comm_hook(None, hooks.fp16_compress_hook)
net.register_comm_hook(None, powerSGD.powerSGD_hook)
net.register_comm_hook(None, debugging.noop_hook)
"""


def test_hooks_by_their_package_s_short_names():
    """They say how gradients are sent: nothing that would be refused."""
    found = ported(HOOKS)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert "_hook" not in found.text


SOFT = """
import torch.nn.functional as F
x = torch.arange(24.0).view(2, 3, 4).half() / 5
made += [F.log_softmax(x, dim=1, dtype=torch.float32), torch.log_softmax(x, -1, torch.float32)]
made += [F.log_softmax(x.float(), -1), F.log_softmax(input=x, dim=0, dtype=torch.float)]
"""


def test_log_softmax_in_another_dtype(tmp_path):
    """The tensor is cast first."""
    found = ported(FILLED + SOFT)
    compare(FILLED + SOFT, found.text, tmp_path, rtol=1e-4)
    doubted = [edit for edit in found.edits if edit.kind in ("refused", "unproven")]
    assert not [edit for edit in doubted if "softmax" in edit.old]


WITHOUT = """
import torch
try:
    import mamba_ssm.ops as parts
    parts.start()
    there = True
except ImportError:
    there = False
def used(x):
    return parts.scan(x) if there else torch.relu(x)
"""


def test_what_stands_behind_an_import_that_raises():
    """The status said that the file does not run: the script's own way without it does."""
    found = ported(WITHOUT)
    assert status_of(found.source, found.edits).text == "runs unless line 10 is reached"
