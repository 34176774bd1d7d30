"""What only is called an optimizer, what stands around one, averages over states, old spellings."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Parameter, Tensor

import mpcore_port_runtime as port

from .ports import beside, compare, ported

HEAD = """import copy
import numpy as np
import torch
from torch import nn
made = []
def filled(net, start):
    for p in net.parameters():
        p.data.copy_(torch.linspace(start, 1.0, p.numel()).view(p.shape))
    return net
model, target = filled(nn.Linear(3, 2), -1.0), filled(nn.Linear(3, 2), 0.5)
loader = [(torch.ones(4, 3) * n, torch.ones(4, 2)) for n in (1.0, 0.5, 2.0)]
"""
BY_PARAMETERS = """
class Mean:
    def __init__(self, net, other, d):
        self.net, self.other, self.d = net, other, d
    def step(self):
        for p, t in zip(self.net.parameters(), self.other.parameters()):
            t.data.mul_(self.d).add_(p.data * (1 - self.d))
"""
BY_STATES = """
class Mean:
    def __init__(self, net, other, d):
        self.d = d
        self.own = list(net.state_dict().values())
        self.means = list(other.state_dict().values())
        for q, p in zip(self.own, self.means):
            q.data.copy_(p.data)
    def step(self):
        for q, m in zip(self.own, self.means):
            m.mul_(self.d)
            m.add_(q * (1 - self.d))
            q.mul_(0.9)
"""
LOOP = """
def train(net, {0}, ema_optimizer):
    for x, y in loader:
        loss = ((net(x) - y) ** 2).mean()
        {0}.zero_grad()
        loss.backward()
        {0}.step()
        ema_optimizer.step()
        made.append(loss.item())
train(model, torch.optim.SGD(model.parameters(), lr=0.1), Mean(model, target, 0.75))
made += [*model.parameters(), *target.parameters()]
"""


@pytest.mark.parametrize("mean", [BY_PARAMETERS, BY_STATES])
@pytest.mark.parametrize("name", ["opt", "optimizer"])
def test_what_averages_weights_is_no_optimizer(mean, name, tmp_path):
    found = beside(HEAD + mean + LOOP.format(name), tmp_path)
    assert "ema_optimizer.step()" in found.text
    assert "ema_optimizer.parameters" not in found.text


def test_an_average_that_is_handed_in_is_no_optimizer():
    code = LOOP.format("optimizer").partition("train(model")[0]
    found = ported(HEAD + code)
    assert "port.step(ema_optimizer)" in found.text
    assert "optimizer(grads)" in found.text


AROUND = """
class Warm:
    def __init__(self, size, optimizer):
        self.optimizer, self.count, self.size = optimizer, 0, size
    def step(self):
        self.count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.size * self.count ** -0.5
        self.optimizer.step()
    def zero_grad(self):
        self.optimizer.zero_grad()
opt = Warm(0.1, torch.optim.SGD(model.parameters(), lr=0.0))
for x, y in loader:
    opt.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    opt.step()
    made.append(loss.item())
made += [*model.parameters()]
"""


def test_what_stands_around_an_optimizer_keeps_its_step(tmp_path):
    assert "opt.parameters" not in beside(HEAD + AROUND, tmp_path).text


def test_a_class_of_another_file_is_stepped_as_it_is():
    code = AROUND.partition("class Warm")[0] + "opt = Warm(" + AROUND.partition("opt = Warm(")[2]
    found = ported(HEAD.replace("made = []", "from warm import Warm\nmade = []") + code)
    assert "port.step(opt)" in found.text
    assert "opt.parameters" not in found.text


def test_a_detached_parameter_wants_no_gradient(tmp_path):
    code = """
for param in model.parameters():
    param.detach_()
made += [float(p.requires_grad) for p in model.parameters()]
for x, y in loader:
    loss = (target(x) ** 2).sum()
    loss.backward()
    for param in target.parameters():
        param.grad.detach_()
        param.grad.mul_(0.5)
made += [p.grad for p in target.parameters()]
"""
    beside(HEAD + code, tmp_path)


def test_a_copy_of_a_network_is_one(tmp_path):
    code = """
from torch.nn import Dropout
def check(net):
    net.eval()
    made.append(net(torch.ones(2, 3)))
best = model
for _ in range(2):
    check(model)
    best = copy.deepcopy(model)
check(best)
"""
    assert ".eval()" not in beside(HEAD + code, tmp_path).text
    other = HEAD + "import nets\nmodel = nets.Net()\n" + code
    assert ".eval()" not in ported(other).text


def test_a_loaders_iterator_has_the_old_next_and_a_length(tmp_path):
    code = """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
rows = iter(loader)
made += [float(len(rows)), rows.next()[0], loader.__iter__().next()[0], next(rows)[0]]
"""
    plain = code.replace("rows.next()", "next(rows)")
    plain = plain.replace("loader.__iter__().next()", "next(iter(loader))")
    compare(HEAD + plain, ported(HEAD + code).text, tmp_path)


def test_tensors_are_compared_with_numpys_numbers_and_arrays(tmp_path):
    code = """
y = torch.tensor([1, 2, 1])
for c in np.unique([2, 1, 1]):
    made += [(y == c).sum(), (y != c).sum(), y[y == c]]
made += [(y == np.array([1, 1, 1])).sum(), (y == np.float32(2)).sum()]
"""
    beside(HEAD + code, tmp_path)
    kept = Parameter(Tensor(np.ones(2, np.float32)))
    assert {kept: 1}[kept] == 1
    assert (kept == None) is False  # noqa: E711  # as a script may ask it


OLD = """from torch.autograd import Variable
import utils
def see(net, x, y):
    precision, rest = utils.accuracy(net(Variable(x)), y)
    return precision.data[0], rest.data[0], utils.items.data[0]
"""


def test_measures_of_another_file_give_their_number():
    found = ported("import torch\n" + OLD)
    assert "port.first(precision.data), port.first(rest.data)" in found.text
    new = OLD.replace("from torch.autograd import Variable\n", "").replace("Variable(x)", "x")
    assert "port.first" not in ported("import torch\n" + new).text
    assert port.first(np.float32(3.0)) == port.first(Tensor(3.0)) == port.first([3.0]) == 3.0


@pytest.mark.parametrize(
    "chain", ["data.cpu().numpy()", "cpu().data.numpy()", "data.numpy()", "cpu().data", "data"]
)
def test_the_number_of_a_loss_is_taken_through_numpy(chain):
    script = f"import torch\ndef see(loss, x):\n    return loss.{chain}[0], x.{chain}[0]\n"
    found = ported(script)
    assert found.text.count("port.first(") == 1


LEAVES = """
class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.alphas = torch.zeros(2, requires_grad=True)
        self.weight = nn.Parameter(torch.zeros(2), requires_grad=True)
    def arch_parameters(self):
        return [self.alphas]
"""


def test_a_tensor_that_wants_a_gradient_nobody_asks_for_is_listed():
    listed = [e for e in ported(HEAD + LEAVES).edits if e.rule == "leaf"]
    assert [e.kind for e in listed] == ["unproven"]
    own = "cells = Cells()\nsolver = torch.optim.SGD([cells.alphas], lr=0.1)\n"
    read = LEAVES + "    def see(self):\n        return self.alphas.grad\n"
    assert not [e for e in ported(HEAD + read).edits if e.rule == "leaf"]
    assert ported(HEAD + LEAVES + own)
