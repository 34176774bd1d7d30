"""What a thing is: devices and dtypes that are asked for their class, objects with own methods."""

from __future__ import annotations

import pytest

from .ports import FILLED, beside, ported

KINDS = {
    "a device": """
def where(device):
    if not isinstance(device, torch.device):
        device = torch.device(device)
    return device.type
cpu = torch.device("cpu")
made = [where("cpu") == where(cpu), isinstance("cpu", (int, torch.device)),
        type(cpu) is torch.device, isinstance(cpu, (str, torch.device)),
        torch.device(cpu) == cpu, cpu.index is None]
""",
    "a dtype": """
def is_dtype(value):
    return isinstance(value, torch.dtype)
made = [is_dtype(value) for value in (torch.float32, torch.int64, "float32", 1, torch.ones(2))]
""",
}


@pytest.mark.parametrize("script", KINDS.values(), ids=KINDS)
def test_devices_and_dtypes_have_a_class(script, tmp_path):
    beside(FILLED + script, tmp_path)


LOOKED_UP = """import torch
class Trainer:
    def __init__(self, size):
        self.said = [size]
    def train(self, mode=True):
        self.said.append(mode)
    def eval(self):
        self.train(False)
REGISTRY = {"one": Trainer}
def load(name):
    model_class = REGISTRY[name]
    model = model_class(3)
    model.eval()
    return model
model = load("one")
made = [float(one) for one in model.said]
"""


def test_a_model_that_is_looked_up_may_be_a_trainer(tmp_path):
    beside(LOOKED_UP, tmp_path)


CLONED = """import torch
class Signal:
    def __init__(self, audio):
        self.audio = audio
    def clone(self):
        return Signal(self.audio.clone() * 2.0)
    def copy(self):
        return self
"""
USED = {
    "by a word": """
def other(batch):
    return batch["signal"].clone()
made = [other({"signal": Signal(torch.ones(2))}).audio]
""",
    "by its fields": """
def doubled(signal):
    other = signal.clone()
    return other.audio + signal.audio
made = [doubled(Signal(torch.ones(2)))]
""",
    "a tensor": """
batch = {"x": torch.ones(3)}
kept = batch["x"].clone()
batch["x"] = batch["x"] + 1
made = [kept, batch["x"]]
""",
}


@pytest.mark.parametrize("use", USED.values(), ids=USED)
def test_objects_of_another_file_keep_their_own_clone(use, tmp_path):
    beside(CLONED + use, tmp_path)


def test_objects_that_no_class_of_the_file_is_keep_their_own_clone():
    script = 'import torch\ndef f(batch, cfg):\n    return batch["signal"].clone(), cfg.clone()\n'
    found = ported(script)
    assert found.text.count("port.clone(") == 2


AROUND = """
class Around(torch.optim.Optimizer):
    def __init__(self, optimizer, k=2):
        self.optimizer, self.k, self.count = optimizer, k, 0
        self.param_groups = optimizer.param_groups
    def zero_grad(self):
        self.optimizer.zero_grad()
    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        self.count += 1
        return loss
net = filled(nn.Linear(2, 1))
optimizer = Around(torch.optim.SGD(net.parameters(), lr=0.1))
for turn in range(3):
    optimizer.zero_grad()
    loss = net(torch.ones(4, 2) * turn).pow(2).mean()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
made.append(net.weight.detach())
"""


def test_an_optimizer_around_another_hands_on_its_closure(tmp_path):
    found = beside(FILLED + AROUND, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


HEADS = {
    "places of two tensors are copies": """
def head(x, label):
    cos = torch.mm(x, x.t()).clamp(-1, 1)
    picked = cos[torch.arange(0, x.size(0)), label].view(-1, 1)
    cos.scatter_(1, label.view(-1, 1).long(), picked * 0.5)
    return cos, picked
""",
    "one of two moves": """
def head(x, label):
    one_hot = torch.zeros(x.size(0), 3)
    one_hot = one_hot.cuda() if x.is_cuda else one_hot
    one_hot.scatter_(1, label.view(-1, 1), 1)
    return one_hot, x
""",
    "a part in arithmetic": """
def head(x, label):
    cos = torch.mm(x, x.t())
    first = cos[0] * 2
    cos[1] = 0.25
    cos.scatter_(1, label.view(-1, 1), 0.5)
    return cos, first
""",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_heads_that_write_margins_change_what_is_theirs_alone(head, tmp_path):
    script = FILLED + head
    script += "\nx = torch.linspace(-0.4, 0.4, 9).view(3, 3)\n"
    script += "made = [*head(x, torch.tensor([2, 0, 1]))]\n"
    found = beside(script, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


def test_a_view_of_a_tensor_that_is_changed_sees_it(tmp_path):
    script = """import torch
def head(x, label):
    cos = torch.mm(x, x.t())
    row = cos[0]
    cos.scatter_(1, label, 0.5)
    return cos, row
"""
    script += "made = [*head(torch.ones(3, 2), torch.tensor([[2], [0], [1]]))]\n"
    beside(script, tmp_path)
