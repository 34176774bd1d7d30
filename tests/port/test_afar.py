"""Losses of what a network gave in another function, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = """import itertools
import torch
from torch import nn
import torch.nn.functional as F
made = []
def filled(net):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
    return net
batches = [torch.linspace(-1.0, s, 24).view(6, 4) for s in (1.0, 2.0, 3.0)]
"""

MODEL = """
class Model:
    def __init__(self):
        self.net_g = filled(nn.Linear(4, 4))
        self.net_d = filled(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)))
        self.criterion = nn.L1Loss()
        self.optimizer_g = torch.optim.SGD(self.net_g.parameters(), lr=0.1)
        self.optimizer_d = torch.optim.SGD(self.net_d.parameters(), lr=0.1)
    def set_input(self, x):
        self.real = x
    def forward(self):
        self.fake = self.net_g(self.real)
    def backward_d(self):
        self.loss_d = self.net_d(self.fake.detach()).mean() - self.net_d(self.real).mean()
        self.loss_d.backward()
    def backward_g(self):
        both = self.fake + 0.5 * self.real
        self.loss_g = self.criterion(self.fake, self.real) - self.net_d(both).mean()
        self.loss_g.backward()
"""
D_STEP = """
        self.optimizer_d.zero_grad()
        self.backward_d()
        self.optimizer_d.step()
"""
G_STEP = """
        self.optimizer_g.zero_grad()
        self.backward_g()
        self.optimizer_g.step()
"""
RUN = """
model = Model()
for x in batches:
    model.set_input(x)
    model.optimize()
    made += [model.loss_d.detach(), model.loss_g.detach(), model.fake.detach()]
made += [p.detach() for net in (model.net_g, model.net_d) for p in net.parameters()]
"""
BEFORE = "    def optimize(self):\n        self.forward()\n"
CLASSES = {
    "d then g": MODEL + BEFORE + D_STEP + G_STEP + RUN,
    "g then d": MODEL + BEFORE + G_STEP + D_STEP + RUN,
    "its network is a part of another one": (
        MODEL.replace("class Model:", "class Model(nn.Module):")
        .replace("self.net_g = ", "super().__init__()\n        self.net_g = ")
        .replace("def forward(self)", "def run(self)")
        + BEFORE.replace("forward", "run")
        + D_STEP
        + G_STEP
        + RUN
    ),
    "what it keeps is kept under a condition": (
        MODEL.replace(
            "self.fake = self.net_g(self.real)",
            "if True:\n            self.fake = self.net_g(self.real)",
        )
        + BEFORE
        + D_STEP
        + G_STEP
        + RUN
    ),
}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_loss_runs_once_more_what_another_method_keeps(name, tmp_path):
    found = beside(HEAD + CLASSES[name], tmp_path)
    assert any("and in the loss once more" in edit.effect for edit in found.edits)


PARAMETERS = """
nets = [one for name, one in sorted(globals().items()) if name in ("model", "net_g", "net_d")]
made += [p.detach() for net in nets for p in net.parameters()]
"""
AFAR = {
    "another optimizer has moved it": MODEL.replace(
        "SGD(self.net_d.parameters()", "SGD([*self.net_d.parameters(), *self.net_g.parameters()]"
    )
    + BEFORE
    + D_STEP
    + G_STEP,
    "what it keeps is another one by then": (
        MODEL + BEFORE + "        self.fake = self.fake * 2\n" + D_STEP + G_STEP
    ),
    "what it reads is another one by then": (
        MODEL + BEFORE + "        self.set_input(self.real * 2)\n" + D_STEP + G_STEP
    ),
    "a mode changes between": MODEL + BEFORE + "        self.net_g.eval()\n" + D_STEP + G_STEP,
    "it draws noise": (
        MODEL.replace("self.net_g(self.real)", "self.net_g(torch.randn_like(self.real))")
        + BEFORE
        + D_STEP
        + G_STEP
    ),
    "it counts": (
        MODEL.replace("self.fake = ", "self.n += 1\n        self.fake = ").replace(
            "self.net_g = ", "self.n = 0\n        self.net_g = "
        )
        + BEFORE
        + D_STEP
        + G_STEP
    ),
    "it takes an argument": (
        MODEL.replace("def forward(self)", "def forward(self, k)").replace("(self.real)\n", "(k)\n")
        + BEFORE.replace("forward()", "forward(self.real)")
        + D_STEP
        + G_STEP
    ),
    "nothing calls it first": MODEL + "    def optimize(self):" + D_STEP + G_STEP,
    "a function that gets a network's output": """
model = filled(nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update(output, target):
    loss = F.mse_loss(output, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for x in batches:
    update(model(x), torch.zeros(6, 3))
""",
    "a function that runs a network of its own too": """
net_g, net_d = filled(nn.Linear(4, 4)), filled(nn.Linear(4, 1))
opt_g = torch.optim.SGD(net_g.parameters(), lr=0.1)
def train_generator(optimizer, fake):
    optimizer.zero_grad()
    error = net_d(fake).mean()
    error.backward()
    optimizer.step()
for x in batches:
    fake = net_g(x).detach()
    fake = net_g(x)
    train_generator(opt_g, fake)
""",
    "by way of another function": """
net_g, net_d = filled(nn.Linear(4, 4)), filled(nn.Linear(4, 1))
opt_g = torch.optim.SGD(net_g.parameters(), lr=0.1)
def inner(value, scale=1.0):
    opt_g.zero_grad()
    error = net_d(value * scale).mean()
    error.backward()
    opt_g.step()
def outer(value):
    inner(value[:3], scale=2.0)
def train():
    for x in batches:
        outer(net_g(x))
train()
""",
    "what a function returns": """
model = filled(nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def predict(x):
    hidden = model(x)
    return hidden.tanh(), 2
class Trainer:
    def losses(self, out):
        loss = out.pow(2).mean()
        loss.backward()
    def run(self):
        for x in batches:
            out, n = predict(x)
            optimizer.zero_grad()
            self.losses(out=out)
            optimizer.step()
Trainer().run()
""",
    "a name of the function around": """
model = filled(nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(x):
    out = model(x)
    def closing():
        loss = out.pow(2).mean()
        loss.backward()
    optimizer.zero_grad()
    closing()
    optimizer.step()
train(batches[0])
""",
}


ALONE = {"it draws noise", "nothing calls it first"}
"""Without numbers: those of the first are drawn, and torch raises in the second."""


@pytest.mark.parametrize("name", sorted(AFAR))
def test_a_loss_of_another_functions_network_goes_through_what_is_recorded(name, tmp_path):
    script = HEAD + AFAR[name] + (RUN if "class Model" in AFAR[name] else PARAMETERS)
    found = ported(script) if name in ALONE else beside(script, tmp_path)
    reasons = [e.reason for e in found.edits if e.kind == "unproven"]
    places = ("in another function", "where this function is called")
    assert any(place in reason and "record()" in reason for reason in reasons for place in places)


KEPT = {
    "a method keeps it, and the loss is made beside": """
class Trainer:
    def __init__(self):
        self.model = filled(nn.Linear(4, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def predict(self, x):
        self.out = self.model(x)
        self.size = self.out.abs().mean()
    def run(self):
        for x in batches:
            self.predict(x)
            high = self.out.max().item()
            loss = F.mse_loss(self.out, torch.ones(6, 3)) + self.size
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            made.extend([loss.detach(), high])
Trainer().run()
""",
    "the whole loss is kept by a method": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = filled(nn.Linear(4, 3))
        self.optimizer = torch.optim.SGD(self.fc.parameters(), lr=0.1)
    def forward(self, x):
        self.loss = self.fc(x).pow(2).mean()
        return self.loss
    def step(self, x):
        self(x)
        self.forward(x)
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()
        made.append(self.loss.detach())
net = Net()
for x in batches:
    net.step(x)
made += [p.detach() for p in net.parameters()]
made += [len(list(net.modules())), len(list(net.children())), len(net.state_dict())]
""",
    "values alone of another function": """
model = filled(nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
teacher = filled(nn.Linear(4, 3))
@torch.no_grad()
def targets(x):
    return teacher(x) * 2
def aims(x):
    with torch.no_grad():
        found = teacher(x)
    return found
class Trainer:
    def look(self, x):
        with torch.no_grad():
            self.seen = model(x)
        self.count = model(x).argmax(1)
        self.fixed = model(x).detach()
    def update(self, x, aim, other, known):
        out = model(x)
        loss = (out - aim).pow(2).mean() + (out - other).abs().mean() + (out * known).mean()
        loss = loss + (out * self.seen).mean() + (out * self.fixed).mean()
        loss = loss + self.count.float().mean()
        loss = loss * known.size(0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.append(loss.detach())
trainer = Trainer()
for x in batches:
    trainer.look(x)
    trainer.update(x, targets(x), aims(x), model(x).detach())
""",
}


@pytest.mark.parametrize("name", sorted(KEPT))
def test_what_a_method_keeps_is_a_part_of_the_loss(name, tmp_path):
    beside(HEAD + KEPT[name], tmp_path)


BASES = {
    "no base": "class Model:\n",
    "object": "class Model(object):\n",
    "of Python": "import abc\nclass Model(abc.ABC):\n",
    "of the file": "class Base:\n    def forward(self, x):\n        return x\nclass Model(Base):\n",
}
FORWARD = """
    def forward(self, x):
        return x * 2
    def run(self, x):
        return self.forward(x)
made += [Model().run(3.0), Model().forward(2.0)]
"""


@pytest.mark.parametrize("name", sorted(BASES))
def test_forward_of_an_object_that_is_no_network_keeps_its_name(name, tmp_path):
    found = beside(HEAD + BASES[name] + FORWARD, tmp_path)
    assert "construct" not in found.text


def test_a_part_of_a_network_is_a_network(tmp_path):
    mixed = """
class Twice:
    def forward(self, x):
        return self.fc(x) * 2
class Net(Twice, nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = filled(nn.Linear(4, 2))
made += [Net()(batches[0])]
"""
    beside(HEAD + mixed, tmp_path)


FOREIGN = """import torch
from torch import nn
from .base import Base
class Net(Base):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
    def forward(self, x):
        return self.fc(x)
    def save(self):
        self.eval()
        return self.state_dict()
class Trainer(Base):
    def forward(self):
        self.out = self.net(self.x)
    def run(self):
        self.forward()
        self.train()
net = Net()
net.train()
torch.optim.SGD(net.parameters(), lr=0.1)
"""


def test_a_class_of_an_unknown_base_has_both_names():
    text = ported(FOREIGN).text
    for line in (
        "forward = construct",
        "self.set_train(False)",
        "port.state_dict(self)",
        "net = port.in_training(Net())",
        "net.set_train()",
        "        self.forward()\n        self.train()",
    ):
        assert line in text, line
    assert text.count("forward = construct") == 2


TWO = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x):
        return self.fc(x)
a, b = filled(Net()), filled(Net())
"""
OPTIMIZERS = {
    "two optimizers of one loss": """
one = torch.optim.SGD(a.parameters(), lr=0.1)
two = torch.optim.SGD(b.parameters(), lr=0.2)
for x in batches:
    loss = b(a(x)).pow(2).mean()
    one.zero_grad()
    two.zero_grad()
    loss.backward()
    one.step()
    two.step()
    made.append(loss.detach())
""",
    "two optimizers of one window": """
one = torch.optim.Adam(a.parameters(), lr=0.1)
two = torch.optim.SGD(b.parameters(), lr=0.2)
def train():
    for i, x in enumerate(batches[:2]):
        loss = b(a(x)).pow(2).mean()
        loss.backward()
        if i % 2:
            one.step()
            two.step()
            one.zero_grad()
            two.zero_grad()
        made.append(loss.detach())
train()
""",
    "a chain": "params = itertools.chain(a.parameters(), b.parameters())\n",
    "a sum": "params = list(a.parameters()) + list(b.parameters())\n",
    "a list that grows": (
        "params = list(a.parameters())\nfor p in b.parameters():\n    params.append(p)\n"
    ),
    "groups": "params = [{'params': a.parameters()}, {'params': b.parameters()}]\n",
}
ONE = """
optimizer = torch.optim.Adam(params, lr=0.01, betas=(0.5, 0.9))
for x in batches:
    loss = b(a(x)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
"""


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_networks_of_one_class_have_one_optimizer_or_two(name, tmp_path):
    script = OPTIMIZERS[name]
    if "params =" in script:
        script += ONE
    left = "made += [p.detach() for net in (a, b) for p in net.parameters()]\n"
    beside(HEAD + TWO + script + left, tmp_path)


SWITCHED = """
model = filled(nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def targets(x):
    torch.set_grad_enabled(False)
    found = model(x) * 0.5
    torch.set_grad_enabled(True)
    return found
def train():
    torch.set_grad_enabled(True)
    for x in batches:
        loss = F.mse_loss(model(x), targets(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.append(loss.detach())
def test():
    torch.set_grad_enabled(False)
    made.append(model(batches[0]))
for _ in range(2):
    train()
    test()
torch.set_grad_enabled(True)
"""


def test_a_switch_of_gradients_stays_as_it_is_set(tmp_path):
    found = beside(HEAD + SWITCHED, tmp_path)
    assert found.text.count("port.set_grad_enabled(") == 5


def test_a_switch_among_the_statements_of_a_loss_is_refused():
    inside = """
model = filled(nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in batches:
    torch.set_grad_enabled(False)
    aim = model(x)
    torch.set_grad_enabled(True)
    loss = (model(x) - 0.5 * aim).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    found = ported(HEAD + inside)
    assert sum("a switch that stays on" in edit.reason for edit in found.edits) == 2
