"""Cells, bags, lists of Parameters and sequences: what facts do not call, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, compare, loaded, ported

TRAINED = """
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = net(x).pow(2).mean()
    loss.backward()
    optimizer.step()
made = [*net.parameters(), loss]
"""
CELLS = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(4, 3), nn.GRUCell(3, 2, bias=False)
        self.rnn = nn.RNNCell(2, 2, nonlinearity="relu")
    def forward(self, x):
        state, h, r = None, None, torch.zeros(2, 2)
        for step in x:
            state = self.lstm(step, state)
            h = self.gru(state[0], h)
            r = self.rnn(h, r)
        alone = self.lstm(x[0, 0])[0]
        return torch.cat([state[1].view(-1), h.view(-1), r.view(-1), alone])
net, x = Net(), torch.linspace(-2.0, 2.0, 24).view(3, 2, 4)
"""
BAGS = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.bag = nn.EmbeddingBag(6, 3, {how})
    def forward(self, x):
        return self.bag(x, {more})
net, x = Net(), torch.tensor([1, 1, 4, 0, 5, 2, 1])
"""
LISTS = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.ws = nn.ParameterList([nn.Parameter(torch.ones(2, 2)) for _ in range(2)])
        self.more = nn.ParameterList()
        for _ in range(2):
            self.more.append(nn.Parameter(torch.ones(2)))
        self.more[1] = nn.Parameter(torch.zeros(2))
    def forward(self, x):
        for w, b in zip(self.ws, self.more):
            x = torch.tanh(x @ w + b)
        return x * self.ws[-1].sum() * len(self.more)
net, x = Net(), torch.linspace(-1.0, 2.0, 6).view(3, 2)
names = sorted(net.state_dict())
"""
SEQUENCES = """import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(5, 2))
    def forward(self, x):
        rows = [self.w * x, self.w[:2], self.w[1:4]]
        one = pad_sequence(rows, batch_first=True, padding_value=3)
        return torch.cat([one.view(-1), pad_sequence(rows).view(-1)])
net, x = Net(), torch.tensor(2.0)
"""
NORMS = """import torch
from torch import nn
net = nn.Sequential(
    nn.LayerNorm(4, elementwise_affine=False), nn.LayerNorm((3, 4)), nn.LayerNorm(4, bias=False)
)
x = torch.linspace(-1.0, 2.0, 24).view(2, 3, 4) ** 3
"""
HANDED = """import torch
from functools import partial
from torch import nn
class Block(nn.Module):
    def __init__(self, dim, norm_layer=nn.LayerNorm, act_layer=nn.GELU, last=None):
        super().__init__()
        if last is None:
            last = nn.Sigmoid
        self.fc, self.act, self.last = nn.Linear(dim, dim), act_layer(), last()
        self.norm = norm_layer(dim)
    def forward(self, x):
        return self.last(self.norm(self.act(self.fc(x))))
layers = {"relu": nn.ReLU, "leaky": nn.LeakyReLU}
net = nn.Sequential(
    Block(4), Block(4, nn.BatchNorm1d, layers["leaky"], nn.Tanh),
    Block(4, partial(nn.LayerNorm, eps=0.1), partial(layers["relu"], inplace=True), last=nn.GELU),
    Block(4, lambda dim: nn.GroupNorm(2, dim)),
    Block(4, partial(nn.GroupNorm, 2, affine=False)),
)
x = torch.linspace(-1.0, 2.0, 12).view(3, 4)
"""
_BAGS = [
    ("mode='sum'", "torch.tensor([0, 2, 2, 5])"),
    ("mode='max', padding_idx=1", "torch.tensor([0, 2, 6])"),
    ("padding_idx=-1, include_last_offset=True", "torch.tensor([0, 3, 3, 7])"),
    ("mode='sum'", "torch.tensor([0, 4]), torch.linspace(0.1, 1.0, 7)"),
]


@pytest.mark.parametrize(
    "script",
    [CELLS, LISTS, SEQUENCES, NORMS, HANDED]
    + [BAGS.replace("{how}", how).replace("{more}", more) for how, more in _BAGS],
)
def test_what_they_give_and_learn_is_torchs(script, tmp_path):
    beside(script + TRAINED, tmp_path)


def test_parameters_of_lists_have_torchs_names(tmp_path):
    found = ported(LISTS + "made = []\n")
    names = loaded(found.text, tmp_path)["names"]
    assert names == ["more.0", "more.1", "ws.0", "ws.1"]


RUNS = """import torch
x = torch.tensor([[1, 1], [1, 1], [2, 2], [1, 1]])
values, counts = torch.unique_consecutive(x[:, 0], return_counts=True)
rows, places = x.unique_consecutive(return_inverse=True, dim=0)
made = [values, counts, rows, places, torch.unique_consecutive(x)]
"""


def test_runs_of_equal_values_are_counted(tmp_path):
    beside(RUNS, tmp_path)


NAMED = """import torch
from torch import nn
config = {"name": "StepLR", "settings": {"step_size": 2, "gamma": 0.5}}
net = nn.Linear(2, 1)
optimizer = getattr(torch.optim, "SGD")(net.parameters(), lr=1.0)
scheduler = getattr(torch.optim.lr_scheduler, config["name"])(optimizer, **config["settings"])
made = []
for _ in range(5):
    made.append(optimizer.param_groups[0]["lr"])
    optimizer.step()
    scheduler.step()
"""


def test_schedules_are_found_by_their_names(tmp_path):
    found = beside(NAMED, tmp_path)
    assert "getattr(port.lr_scheduler, config" in found.text


@pytest.mark.parametrize(
    "call",
    [
        "EmbeddingBag(4, 3, sparse=True)",
        "EmbeddingBag(4, 3, max_norm=1.0)",
        "EmbeddingBag(4, 3, scale_grad_by_freq=True)",
        "EmbeddingBag(4, 3, _weight=w)",
        "LSTMCell(4, 3, dtype=d)",
    ],
)
def test_what_was_not_compared_is_not_called_exact(call):
    found = ported(f"from torch import nn\ndef f(w, d):\n    return nn.{call}\n")
    assert {edit.kind for edit in found.edits if edit.line == 3} & {"refused", "unproven"}


TRACKED = """import torch
from torch import nn
net, made = nn.InstanceNorm1d(4, track_running_stats=True), []
x = torch.linspace(-1.0, 2.0, 72).view(3, 4, 6).sin()
made += [net(x), net.running_mean, net.running_var]
net.eval()
made.append(net(x + 1.0))
"""


def test_a_norm_of_instances_that_is_made_alone_starts_in_training(tmp_path):
    compare(TRACKED, ported(TRACKED).text, tmp_path, rtol=1e-4, atol=1e-5)
