"""Idioms of scripts of language, sound and recommendation, beside torch."""

from __future__ import annotations

import runpy

import numpy as np
import pytest

import mpcore_port_runtime as port
from mpcore_port_runtime.refusal import PortWarning

from .ports import beside, ported

WARMUP = """class Warmup(object):
    def __init__(self, optimizer, k):
        self.optimizer = optimizer
        self.k, self.step_num = k, 0

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.step_num += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.k * self.step_num
        self.optimizer.step()
"""
SOLVER = """import torch
from torch import nn


class Solver(object):
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def run(self, x):
        losses = []
        for _ in range(3):
            loss = self.model(x).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=0.1)


def net():
    made = nn.Linear(4, 3)
    for p in made.parameters():
        p.data.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
    return made


x = torch.linspace(-1.0, 1.0, 8).view(2, 4)
"""
SEVERAL = """import torch
from torch import nn
import torch.nn.functional as F
made = []


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)

    def forward(self, x):
        return self.embedding(x).mean(1)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.out = nn.Linear(4, 6)

    def forward(self, x, h):
        return self.out(self.embedding(x) + h)


class Model(object):
    def __init__(self):
        encoder = Encoder()
        decoder = Decoder()
        for net in (encoder, decoder):
            for p in net.parameters():
                p.data.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
        decoder.embedding.weight = encoder.embedding.weight
        self.encoder = encoder
        self.decoder = decoder


class Train(object):
    def setup(self):
        self.model = Model()
        params = list(self.model.encoder.parameters()) + list(self.model.decoder.parameters())
        self.optimizer = torch.optim.Adagrad(params, lr=0.1, initial_accumulator_value=0.1)

    def batch(self, x):
        state = torch.zeros(2, 4)
        self.optimizer.zero_grad()
        state = self.model.encoder(x) + state
        losses = []
        for i in range(2):
            losses.append(F.cross_entropy(self.model.decoder(x[:, i], state), x[:, i + 1]))
        loss = torch.stack(losses).sum()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.encoder.parameters(), 0.5)
        self.optimizer.step()
        return loss.item()


train = Train()
train.setup()
for _ in range(3):
    made.append(train.batch(torch.tensor([[1, 2, 3], [4, 5, 0]])))
made.append(train.model.decoder.embedding.weight.detach())
"""
BY_NAME = """import torch
from torch import nn, optim
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, kind, act):
        super().__init__()
        self.rnn = getattr(nn, kind)(3, 4, 2, dropout=0.0)
        self.other = getattr(nn, kind)(input_size=3, hidden_size=4, bidirectional=True)
        self.act = getattr(F, act)
        self.last = getattr(nn, "Linear")(4, 2)

    def forward(self, x):
        y, _ = self.rnn(x)
        return self.last(self.act(y)) + self.other(x)[0].mean()


made = []
for kind, act in [("LSTM", "tanh"), ("GRU", "relu")]:
    net = Net(kind, act)
    for p in net.parameters():
        p.data.fill_(0.1)
    opt = getattr(optim, "SGD")(net.parameters(), lr=0.1)
    criterion = getattr(nn, "MSELoss")(reduction="sum")
    loss = criterion(net(torch.ones(2, 1, 3)), torch.ones(2, 1, 2))
    loss.backward()
    opt.step()
    made.append(loss.detach())
    made.append(net(torch.ones(2, 1, 3)).detach())
made.append(str(getattr(torch, "float16")).lower().endswith("float16"))
"""
AGENT = """import torch
from torch import nn
import torch.nn.functional as F
made = []
class Agent:
    def __init__(self):
        self.head = nn.Linear(3, 2)
        self.body = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
        for m in (self.head, self.body):
            for p in m.parameters():
                p.data.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
    def q(self, x):
        return self.head(self.body(x))
    def count(self):
        return 2.0
agent = Agent()
opt = torch.optim.SGD(list(agent.head.parameters()) + list(agent.body.parameters()), lr=0.5)
x = torch.linspace(-1, 1, 8).view(2, 4)
for i in range(3):
    n = agent.count()
    h = agent.body(x)
    y = agent.head(h)
    z = agent.q(x) * n
    loss = y.pow(2).mean() + z.abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.detach())
class T:
    def __init__(self):
        self.agent = Agent()
        both = list(self.agent.head.parameters()) + list(self.agent.body.parameters())
        self.opt = torch.optim.SGD(both, lr=0.5)
    def run(self):
        q = self.agent.q(x)
        loss = F.mse_loss(q, torch.ones(2, 2))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
t = T()
made += [t.run(), t.run(), t.run()]
"""
METHODS = """import torch
made = []
x = torch.linspace(-1, 1, 12).view(3, 4)
i = torch.tensor([[0, 1], [1, 1], [2, 0]])
s = torch.zeros(3, 4)
s.scatter_add_(1, i, x)
made += [s, torch.zeros(3, 4).scatter_add_(1, i, x), torch.ones(3, 4).tril_()]
v, k = x.topk(1, 1, True, True)
made += [v, k.t(), x.topk(2, dim=0)[0], x.topk(k=2, largest=False)[0]]


def pad_list(xs, value):
    n = len(xs)
    m = max(q.size(0) for q in xs)
    pad = xs[0].new(n, m, *xs[0].size()[1:]).fill_(value)
    for j in range(n):
        pad[j, :xs[j].size(0)] = xs[j]
    return pad


made.append(pad_list([x, x[:2]], -1))
made.append(x.new().size(0))
made.append(torch.cat([torch.LongTensor(), torch.LongTensor([3])]))
idx = (x > 0).nonzero(as_tuple=True)
made += [idx[0], idx[1], torch.nonzero(x > 0, as_tuple=False), x[idx]]
b = torch.LongTensor([[1, 2], [3, 4]])
b.transpose_(0, 1)
made += [b, x.new_tensor([1, 2]), x.select(1, 0), x.unflatten(1, (2, 2)), x.unfold(1, 2, 1)]
"""

WORDS = """import torch
x = torch.linspace(-1, 1, 6).view(2, 3)
made = [torch.argmax(x, axis=1), torch.sum(x, axis = -1, keepdims=True), torch.mean(x, axis=0)]
made += [torch.cat([x, x], axis=1), torch.max(x, axis=1)[0], torch.argmax(input=x, dim=0)]
made += [torch.cumsum(x, axis=1), torch.unsqueeze(x, axis=1)]
"""


def test_numpys_words_for_arguments_of_torch(tmp_path):
    beside(WORDS, tmp_path)


def test_a_class_around_an_optimizer_is_handed_gradients(tmp_path):
    found = ported(WARMUP)
    assert "class Warmup(port.HoldsOptimizer):" in found.text
    theirs: dict = {}
    exec(SOLVER + WARMUP, theirs)
    net = theirs["net"]()
    wanted = theirs["Solver"](net, theirs["Warmup"](theirs["adam"](net), 0.01)).run(theirs["x"])
    (tmp_path / "solver.py").write_text(ported(SOLVER).text, "utf-8")
    (tmp_path / "warmup.py").write_text(found.text, "utf-8")
    own = runpy.run_path(str(tmp_path / "solver.py"))
    wrapper = runpy.run_path(str(tmp_path / "warmup.py"))["Warmup"]
    net = own["net"]()
    got = own["Solver"](net, wrapper(own["adam"](net), 0.01)).run(own["x"])
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        ("def step(self)", "def step(self, loss)"),
        ("self.optimizer.step()", "self.optimizer.skip()"),
        ("self.k, self", "self.parameters, self"),
        ("(object)", "(Base)"),
    ],
)
def test_other_classes_stay(change):
    assert "HoldsOptimizer" not in ported(WARMUP.replace(*change)).text


def test_a_class_without_an_optimizer_says_so():
    class Empty(port.HoldsOptimizer):
        pass

    with pytest.raises(AttributeError, match="Empty holds no optimizer"):
        _ = Empty().parameters


@pytest.mark.filterwarnings("ignore:optimizer contains:UserWarning")  # torch's own
def test_networks_of_an_object_that_share_a_table_are_trained(tmp_path):
    with pytest.warns(PortWarning, match="twice"):
        beside(SEVERAL, tmp_path)


def test_methods_and_networks_of_an_object_run_in_the_loss(tmp_path):
    beside(AGENT, tmp_path)


def test_layers_activations_and_dtypes_by_a_text(tmp_path):
    beside(BY_NAME, tmp_path)


def test_methods_of_tensors(tmp_path):
    beside(METHODS, tmp_path)


POSITIONS = """import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        pe = torch.linspace(0, 1, 12).view(3, 4)
        pe = pe.unsqueeze(0)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


net = Positions()
state = {name: value * 2 for name, value in net.state_dict().items()}
net.load_state_dict(state)
made = [net(torch.ones(1, 2, 4))]
"""


def test_a_buffer_that_is_a_view_is_loaded(tmp_path):
    beside(POSITIONS, tmp_path)


STARRED = """import torch
from torchvision.transforms import *
from own_transforms import *
made = Compose([ToTensor("input"), Normalize(0.5, 0.5)])
"""


def test_a_star_of_transforms_brings_those_that_are_there():
    found = ported(STARRED)
    assert "from mpcore_port_runtime.transforms import *\nfrom own_transforms" in found.text
    assert 'Compose([ToTensor("input")' in found.text
    assert {edit.line for edit in found.edits if edit.kind == "unproven"} >= {2, 3}


IN_PART = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.Tensor(2, 3, 4))
        self.emb = nn.Embedding(5, 3)
        for i in range(self.k.shape[0]):
            nn.init.constant_(self.k[i], float(i + 1))
        nn.init.constant_(self.emb.weight[1:], 2.0)
        nn.init.constant_(self.emb.weight[0], 0.0)
        nn.init.zeros_(self.k[0, 1])


net = Net()
made = [net.k.detach(), net.emb.weight.detach()]
"""


def test_a_part_of_a_parameter_is_started(tmp_path):
    beside(IN_PART, tmp_path)


GENERATED = """import torch
ids = torch.tensor([[3, 1], [0, 2]])
scores = torch.tensor([[0.1, 0.7, 0.3], [0.9, 0.2, 0.5]])
_, best = torch.topk(scores, k=1, dim=-1)
made = [torch.cat((ids, best), dim=1), torch.cat([ids, scores.topk(1)[1]], 1)]
made += [torch.where(ids > 1, ids, scores.argsort(descending=True)[:, :2])]
made += [torch.argsort(scores, dim=0), torch.stack([ids[0], torch.argsort(ids[0])])]
made += [scores.element_size() * scores.nelement(), ids.element_size()]
"""


def test_places_stand_beside_whole_numbers(tmp_path):
    beside(GENERATED, tmp_path)


def test_numbers_that_a_state_brings_back_are_said_to_be_others():
    found = ported("import torch\nstate = torch.get_rng_state()\ntorch.set_rng_state(state)\n")
    assert [one.kind for one in found.edits if "rng_state" in one.old] == ["changed"] * 2
