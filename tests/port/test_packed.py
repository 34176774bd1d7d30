"""Packed sequences through recurrent layers, and the names of their weights, beside torch."""

from __future__ import annotations

import pytest
from mindspore import ops

from mpcore_port_runtime import pack_padded_sequence

from .ports import beside, ported

PACKED = """import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
made = []
x = torch.linspace(-1.0, 1.0, 72).view(4, 6, 3)


class Net(nn.Module):
    def __init__(self, first, in_order):
        super().__init__()
        self.rnn = nn.KIND(3, 5, num_layers=2, batch_first=first, bidirectional=True)
        self.first, self.in_order = first, in_order
        self.out = nn.Linear(10, 2)

    def forward(self, x, lens, state=None):
        if not self.first:
            x = x.transpose(0, 1)
        packed = pack_padded_sequence(
            x, lens, batch_first=self.first, enforce_sorted=self.in_order
        )
        y, h = self.rnn(packed, state)
        y, n = pad_packed_sequence(y, batch_first=self.first)
        if isinstance(h, tuple):
            h = h[0] + h[1]
        return self.out(y), h, n


for first, in_order in [(True, True), (False, False)]:
    net = Net(first, in_order)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
    lens = torch.tensor([6, 4, 4, 1]) if in_order else torch.tensor([2, 5, 1, 4])
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(3):
        state = torch.ones(4, 4, 5) * 0.1 * torch.arange(4.0).view(1, 4, 1)
        if isinstance(net.rnn, nn.LSTM):
            state = (state, state * 2)
        y, h, n = net(x, lens, state if i == 1 else None)
        loss = y.pow(2).mean() + h.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        made.append(loss.detach())
    made += [y.detach(), h.detach(), n]
    made.append(sum(p.pow(2).sum() for p in net.parameters()).detach())
"""
PARTS = """import torch
import torch.nn.utils.rnn as rnn_utils
packed = rnn_utils.pack_padded_sequence(torch.arange(12).view(2, 6), [5, 3], batch_first=True)
made = [packed.data, packed[0], packed.batch_sizes]
made.append(rnn_utils.pad_packed_sequence(packed, True, padding_value=-1, total_length=7)[0])
many = [torch.ones(2, 2) * 2, torch.ones(3, 2)]
data, sizes, order, back = rnn_utils.pack_sequence(many, enforce_sorted=False)
made += [data, sizes, order, back]
made += rnn_utils.unpack_sequence(rnn_utils.pack_sequence(many, enforce_sorted=False))
"""
WEIGHTS = """import torch
from torch import nn
made = []
lstm, gru = nn.LSTM(3, 4, num_layers=2, bidirectional=True), nn.GRU(3, 4)
for names in lstm._all_weights:
    for name in names:
        held = getattr(lstm, name)
        held.data.fill_(0.1 if name.startswith("weight_") else 0.0)
        if name.startswith("bias_"):
            n = held.size(0)
            held.data[n // 4 : n // 2].fill_(1.0)
made += [held.detach() for row in lstm.all_weights for held in row]
nn.init.constant_(gru.weight_ih_l0, 0.3)
nn.init.constant_(gru.weight_hh_l0.data, 0.2)
gru.bias_ih_l0.data.zero_()
gru.bias_hh_l0.data[:4] = 0.5
gru.bias_hh_l0.data[4:] = 0.25
y, h = gru(torch.ones(2, 1, 3))
made += [y.detach(), h.detach(), lstm(torch.ones(2, 1, 3))[0].detach()]
"""
PLAIN = """import torch
from torch import nn
net = nn.LSTM(3, 4)
made = [isinstance(net, nn.LSTM)]
"""


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_layer_takes_packed_sequences(kind, tmp_path):
    beside(PACKED.replace("KIND", kind), tmp_path)


def test_the_parts_of_a_packed_sequence(tmp_path):
    beside(PARTS, tmp_path)


def test_weights_by_the_names_that_torch_gives_them(tmp_path):
    beside(WEIGHTS, tmp_path)


def test_a_layer_without_packed_sequences_is_mindspores(tmp_path):
    assert "net = nn.LSTM(3, 4)" in beside(PLAIN, tmp_path).text


def test_lengths_that_do_not_fall_are_told():
    with pytest.raises(RuntimeError, match="decreasing"):
        pack_padded_sequence(ops.ones((3, 2)), [1, 3])


def test_a_star_brings_the_packing_too():
    script = "from helpers import *\npacked = pack_padded_sequence(x, lens)\n"
    assert "port.pack_padded_sequence(x, lens)" in ported(script).text
