"""Names of torch that few scripts have, beside torch: what facts do not ask."""

from __future__ import annotations

import pytest

from .ports import FILLED, compare, ported


def same(script: str, folder) -> str:
    found = ported(script)
    compare(script, found.text, folder, 1e-5, 1e-6)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    return found.text


def test_whole_numbers_are_turned_and_shifted(tmp_path):
    script = (
        FILLED
        + """
x = torch.tensor([[0, 1, -3], [7, 2, 5]])
u = torch.tensor([0, 1, 200], dtype=torch.uint8)
b = x > 1
made += [~x, ~u, ~b, x << 2, x >> 1, x.bitwise_not(), torch.bitwise_not(u), ~b & (x < 5)]
"""
    )
    same(script, tmp_path)


def test_ranges_of_types_and_conditions(tmp_path):
    script = (
        FILLED
        + """
import numpy as np
info = torch.iinfo(torch.int64)
made += [np.array([info.max, info.min, torch.iinfo(torch.uint8).max, info.bits])]
torch._assert(info.max > 0, 'so it is')
try:
    torch._assert(info.max < 0, 'so it is not')
except AssertionError as exc:
    made += [np.array(str(exc) == 'so it is not')]
made += [np.array(torch.broadcast_shapes((2, 1), (3,)))]
"""
    )
    same(script, tmp_path)


def test_places_of_the_smallest_of_tensors_and_arrays(tmp_path):
    script = (
        FILLED
        + """
import numpy as np
x = torch.linspace(-1, 2, 12).view(3, 4).sin()
def smallest(values):
    return values.argmin()
made += [x.argmin(), x.argmin(dim=1), x.argmin(-1, keepdim=True)]
made += [np.asarray(smallest(x.numpy())), smallest(x), (x > 0).count_nonzero()]
made += [np.array(x.stride()), np.array(x.t().contiguous().stride(0))]
"""
    )
    same(script, tmp_path)


DICT = (
    FILLED
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterDict({'a': nn.Parameter(torch.ones(3))})
        self.scales['b'] = nn.Parameter(torch.zeros(3) + 0.5)
        self.norm = nn.RMSNorm(3, eps=1e-6)
    def forward(self, x):
        out = self.norm(x)
        for key in self.scales:
            out = out * self.scales[key]
        return out + self.scales['a'] * ('b' in self.scales)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.linspace(-1, 2, 12).view(4, 3)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made += [loss.detach().clone()]
state = net.state_dict()
made += [state[key].clone() for key in ('scales.a', 'scales.b', 'norm.weight')]
made += [net.scales['a'].detach().clone()]
"""
)


def test_a_dictionary_of_parameters_is_trained_and_saved(tmp_path):
    same(DICT, tmp_path)


@pytest.mark.parametrize("what", ["dropout2d", "dropout1d", "alpha_dropout"])
def test_dropout_that_is_off_changes_nothing(what, tmp_path):
    script = (
        FILLED
        + f"""
import torch.nn.functional as F
x = torch.linspace(-1, 2, 24).view(2, 3, 4)
x = x.unsqueeze(-1) if {what!r} == 'dropout2d' else x
made += [F.{what}(x, 0.4, training=False), F.{what}(x, p=0.0, training=True)]
"""
    )
    same(script, tmp_path)


def test_what_is_close_is_told_from_what_is_not(tmp_path):
    script = (
        FILLED
        + """
import numpy as np
x = torch.linspace(0.1, 1, 5)
def told(one, other, **how):
    try:
        torch.testing.assert_close(one, other, **how)
    except AssertionError:
        return False
    return True
made += [np.array([told(x, x + 1e-7), told(x, x + 1e-4), told(x, x + 1e-4, rtol=0.01, atol=0.0)])]
made += [np.array([told(x, x[:4]), told(x, x.double()), told([x, 1.0], [x, 1.0]), told(1, 2)])]
made += [np.array([told(x.half(), (x + 1e-4).half()), told(x > 0.5, x > 0.6)])]
"""
    )
    same(script, tmp_path)


DECODER = (
    FILLED
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerDecoderLayer(8, 2, dim_feedforward=16, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)
    def forward(self, x, memory, hidden):
        n = x.shape[1]
        MASK
        return self.decoder(x, memory, tgt_mask=mask, memory_key_padding_mask=hidden)
torch.manual_seed(0)
net = filled(Net())
x = torch.linspace(-1, 2, 48).view(2, 3, 8).sin()
memory = torch.linspace(2, -1, 64).view(2, 4, 8).cos()
hidden = torch.tensor([[False, False, True, True], [False, False, False, True]])
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(x, memory, hidden).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made += [loss.detach().clone()]
"""
)


@pytest.mark.parametrize(
    "mask",
    [
        "mask = torch.triu(torch.ones(n, n), diagonal=1).bool()",
        "mask = torch.triu(torch.full((n, n), float('-inf')), diagonal=1)",
        "mask = None",
    ],
)
def test_a_decoder_sees_what_its_masks_leave(mask, tmp_path):
    script = DECODER.replace("MASK", mask)
    found = ported(script)
    compare(script, found.text, tmp_path, 1e-4, 1e-5)
