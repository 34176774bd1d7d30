"""``torch.autograd.grad(loss, net.parameters())``, networks that are made on the way, slots."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

import mpcore_port_runtime as port

from .ports import beside, ported

HEAD = """import copy
import torch
import torch.nn.functional as F
from torch import nn
made = []
def filled(net, value):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-value, 1.0, p.numel()).view(p.shape))
    return net
net = filled(nn.Linear(3, 2), 1.0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
x, y = torch.cos(torch.arange(12.0)).view(4, 3), torch.sin(torch.arange(8.0)).view(4, 2)
def step():
    optimizer.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
"""
GRADIENTS = {
    "a method's": """
class Solver:
    def __init__(self, model):
        self.model = model
    def product(self, r=0.01):
        for p in self.model.parameters():
            p.data.add_(r * torch.ones_like(p))
        loss = F.mse_loss(self.model(x), y)
        first = torch.autograd.grad(loss, self.model.parameters())
        for p in self.model.parameters():
            p.data.sub_(2 * r * torch.ones_like(p))
        loss = F.mse_loss(self.model(x), y)
        second = torch.autograd.grad(loss, self.model.parameters(), retain_graph=True)
        return [(a - b) / (2 * r) for a, b in zip(first, second)]
made += Solver(net).product()
""",
    "a list's": """
def gradients():
    params = [p for p in net.parameters() if p.requires_grad]
    loss = F.mse_loss(net(x), y)
    return torch.autograd.grad(outputs=loss, inputs=params, create_graph=False)
made += [*gradients()]
""",
    "inside of an expression": """
def flat():
    loss = F.mse_loss(net(x), y)
    return torch.cat([g.view(-1) for g in torch.autograd.grad(loss, list(net.parameters()))])
made.append(flat())
""",
}


@pytest.mark.parametrize("body", GRADIENTS.values(), ids=GRADIENTS)
def test_a_loss_is_differentiated_by_a_networks_weights(body, tmp_path):
    found = beside(HEAD + body + "step()\nmade += [*net.parameters()]\n", tmp_path)
    assert "port.grad(loss, " in found.text


def test_other_methods_parameters_are_listed():
    code = """
def see(model):
    loss = model.loss(x, y)
    return torch.autograd.grad(loss, model.arch_parameters())
"""
    found = ported(HEAD + code)
    assert "port.loss(forward_2, model, *model.arch_parameters())" in found.text
    assert [e.kind for e in found.edits if "asked for by Parameters" in e.reason] == ["unproven"]


HELD = """
class Searched(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = filled(nn.Linear(3, 2), 1.0)
        self.held = [torch.zeros(2, requires_grad=True)]
    def forward(self, x):
        return self.layer(x) * (1 + self.held[0])
    def arch_parameters(self):
        return self.held
class Search:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(self.model.arch_parameters(), lr=0.1)
    def step(self):
        self.optimizer.zero_grad()
        self.back()
        self.optimizer.step()
    def back(self):
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
"""


def test_a_loss_reaches_what_another_method_of_its_network_gives(tmp_path):
    found = ported(HEAD + HELD)
    assert "port.loss(forward_2, self.model, *self.model.arch_parameters())" in found.text


def test_what_may_be_none_in_torch_is_listed():
    call = "torch.autograd.grad(loss, net.parameters(), allow_unused=True)"
    found = ported(HEAD + f"\ndef see():\n    loss = F.mse_loss(net(x), y)\n    return {call}\n")
    assert [e.kind for e in found.edits if "zeros here" in e.reason] == ["unproven"]


LEFT = {
    "of gradients": "torch.autograd.grad(loss, list(net.parameters()), create_graph=True)",
    "by tensors": "torch.autograd.grad(loss, fast)",
}


@pytest.mark.parametrize("call", LEFT.values(), ids=LEFT)
def test_gradients_by_other_things_go_through_what_is_recorded(call):
    code = f"\ndef see(fast):\n    loss = F.mse_loss(net(x), y)\n    return {call}\n"
    edits = [e for e in ported(HEAD + code).edits if "port.record() has" in e.reason]
    assert [(e.line, e.kind) for e in edits] == [(HEAD.count("\n") + 4, "unproven")]


UNROLLED = """
def moved(rate):
    loss = F.mse_loss(net(x), y)
    grads = torch.autograd.grad(loss, net.parameters())
    other = copy.deepcopy(net)
    for p, g in zip(other.parameters(), grads):
        p.data.sub_(rate, g)
    return other
def look():
    unrolled_model = moved(0.1)
    unrolled_loss = F.mse_loss(unrolled_model(x), y)
    unrolled_loss.backward()
    return [p.grad for p in unrolled_model.parameters()]
made += look()
"""
OUTPUTS = """
encoder, decoder = filled(nn.Linear(3, 3), 0.5), filled(nn.Linear(3, 2), 0.5)
solver = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
for i in range(2):
    solver.zero_grad()
    first = net(x).detach()
    encoder_outputs = encoder(x)
    loss = F.mse_loss(decoder(encoder_outputs.view(4, 3)), first) + encoder_outputs.mean()
    loss.backward()
    solver.step()
    made.append(loss)
made += [*encoder.parameters(), *decoder.parameters()]
"""


@pytest.mark.filterwarnings("ignore:This overload")
@pytest.mark.parametrize("body", [UNROLLED, OUTPUTS], ids=["network", "outputs"])
def test_a_network_made_on_the_way_is_what_a_loss_is_differentiated_by(body, tmp_path):
    beside(HEAD + body, tmp_path)


SLOTS = """
def momenta():
    try:
        return torch.cat([optimizer.state[p]["momentum_buffer"].view(-1) for p in net.parameters()])
    except KeyError:
        return torch.zeros(8)
for i in range(3):
    made.append(momenta().clone())
    step()
made += [float(len(optimizer.state)), float(net.weight in optimizer.state)]
adam = torch.optim.Adam(net.parameters(), lr=0.1)
made.append(float(len(adam.state)))
for i in range(2):
    adam.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    adam.step()
for p in net.parameters():
    state = adam.state[p]
    made += [state["exp_avg"], state["exp_avg_sq"], float(state["step"]), float(len(state))]
"""


def test_the_slots_of_an_optimizer_are_read_by_parameter(tmp_path):
    beside(HEAD + SLOTS, tmp_path)


def test_slots_that_no_setting_asks_for_are_not_there():
    params = [Parameter(Tensor(np.ones(2, np.float32)), name=f"p{i}") for i in range(2)]
    solver = port.SGD([{"params": params[:1]}, {"params": params[1:], "momentum": 0.5}], lr=0.1)
    assert dict(solver.state) == {}
    solver([Tensor(np.ones(2, np.float32), ms.float32)] * 2)
    assert set(solver.state[params[0]]) == {"step"}
    assert set(solver.state[params[1]]) == {"step", "momentum_buffer"}
