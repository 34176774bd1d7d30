"""Layers of one's own: what they register and are made of; tensors by others, and sparse ones."""

from __future__ import annotations

import numpy as np
import pytest

from .ports import beside, loaded, ported

HEAD = """import torch
from torch import nn
from torch.nn.parameter import Parameter
made = []
def filled(net):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
    return net
def learn(net, size):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(3):
        loss = net(torch.linspace(-1.0, 1.0 + i, 4 * size).view(4, size)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.append(loss.detach())
    made.append(float(len(list(net.parameters()))))
"""
REGISTERED = """
class Layer(nn.Module):
    def __init__(self, a, b, bias=True):
        super().__init__()
        self.weight = Parameter(torch.zeros(a, b))
        if bias:
            self.bias = Parameter(torch.zeros(b))
        else:
            self.register_parameter('bias', None)
        self.register_parameter("scale", nn.Parameter(torch.ones(1)))
    def forward(self, x):
        out = torch.mm(x, self.weight) * self.scale
        return out + self.bias if self.bias is not None else out
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Layer(3, 4), Layer(4, 2, bias=False)
    def forward(self, x):
        return self.b(torch.relu(self.a(x)))
net = filled(Net())
learn(net, 3)
names = sorted(net.state_dict())
"""
HEADS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = [nn.Linear(3, 2) for _ in range(2)]
        for i, head in enumerate(self.heads):
            self.add_module('head_{}'.format(i), head)
        self.first, self.second = nn.Sequential(), nn.Sequential()
        for part, sizes in ((self.first, (4, 3)), (self.second, (3, 1))):
            part.add_module("fc", nn.Linear(*sizes))
            part.add_module("act", nn.ReLU())
    def forward(self, x):
        return self.second(self.first(torch.cat([head(x) for head in self.heads], 1)))
net = filled(Net())
learn(net, 3)
names = sorted(net.state_dict())
names += [name for name, _ in net.named_children()] + [n for n, _ in net.first.named_children()]
made.append(net.get_submodule("first.fc").weight)
"""


@pytest.mark.parametrize("script", [REGISTERED, HEADS], ids=["parameters", "modules"])
def test_what_a_layer_registers_is_held_by_torchs_names(script, tmp_path):
    found = beside(HEAD + script, tmp_path)
    theirs: dict = {"__name__": "script"}
    exec(HEAD + script, theirs)
    assert loaded(found.text, tmp_path)["names"] == theirs["names"]


def test_what_a_network_holds_inside_is_unproven():
    head = "import torch\nfrom torch import nn\n"
    found = ported(f"{head}def f(m: nn.Module):\n    del m._parameters['a']\n")
    assert [edit.kind for edit in found.edits if edit.rule == "attribute"] == ["unproven"]
    assert "m._params['a']" in found.text


NEW = """
std = torch.full((3, 4), 2.0, dtype=torch.float64)
made += [std.new(2, 3).fill_(1.5), std.new([1, 2]), std.new(std.size()).zero_()]
noise = std.data.new(std.size()).normal_()
made.append(noise * 0.0)
class Pool:
    def new(self, a):
        return a
def pooled(pool):
    return pool.new(3)
made.append(float(pooled(Pool())))
"""
SPARSE = """
places = torch.LongTensor([[0, 1, 2, 0], [1, 0, 2, 1]])
values = torch.FloatTensor([1.0, 2.0, 3.0, 4.0])
adj = torch.sparse.FloatTensor(places, values, torch.Size([3, 3]))
other = torch.sparse_coo_tensor(places, values, (3, 4)).coalesce()
x = torch.arange(6).float().view(3, 2)
made += [torch.spmm(adj, x), torch.sparse.mm(adj, x), adj.to_dense(), other.to_dense()]
class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
    def forward(self, x):
        return torch.spmm(adj, self.fc(x[:3]))
learn(filled(Graph()), 2)
"""
GAINS = """
gain = nn.init.calculate_gain
made += [gain("relu"), gain("leaky_relu", 0.2), gain("leaky_relu"), gain("tanh"), gain("conv2d")]
made += [gain("sigmoid"), gain("selu"), gain("linear")]
"""
OTHERS = {"new": NEW, "sparse": SPARSE, "gains": GAINS}


@pytest.mark.parametrize("name", sorted(OTHERS))
@pytest.mark.filterwarnings("ignore")
def test_tensors_and_numbers_that_layers_are_made_of(name, tmp_path):
    beside(HEAD + OTHERS[name], tmp_path)


def test_a_dense_tensor_in_the_place_of_a_sparse_one_is_said():
    found = ported(HEAD + SPARSE)
    said = [edit for edit in found.edits if "dense tensor" in edit.effect]
    assert len(said) == 2
    assert np.all([edit.kind == "changed" for edit in said])
