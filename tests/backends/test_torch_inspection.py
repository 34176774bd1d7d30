"""What an inspection of a torch model sees of ops, and calls its settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import mpcore as mp
from mpcore.tools.inspection import Request, inspect

RNG = np.random.default_rng(13)
ALL = frozenset("*")


def normal(*shape):
    return RNG.normal(size=shape).astype("f4")


SETTINGS = [
    (lambda: nn.BatchNorm2d(2), (2, 4, 4), {"eps": 1e-5, "momentum": 0.1, "affine": True}),
    (lambda: nn.BatchNorm1d(2, momentum=None), (2,), {"momentum": "average"}),
    (lambda: nn.LayerNorm((4, 5)), (4, 5), {"eps": 1e-5, "axes": 2}),
    (lambda: nn.GroupNorm(2, 4), (4, 3, 3), {"groups": 2}),
    (
        lambda: nn.Conv2d(2, 4, (3, 1), 2, (1, 0), groups=2),
        (2, 6, 6),
        {"kernel": [3, 1], "stride": 2, "padding": [1, 0], "groups": 2, "bias": True},
    ),
    (lambda: nn.ConvTranspose2d(2, 4, 4, 2, 1), (2, 6, 6), {"kernel": 4, "padding": 1}),
    (lambda: nn.MaxPool2d(2), (2, 6, 6), {"kernel": 2, "stride": 2, "padding": 0}),
    (lambda: nn.AvgPool2d(3, 1, 1), (2, 6, 6), {"padding": 1, "count_include_pad": True}),
    (lambda: nn.AvgPool2d(3, 1), (2, 6, 6), {"padding": 0, "count_include_pad": None}),
    (lambda: nn.AdaptiveAvgPool2d(1), (2, 6, 6), {"output_size": 1}),
    (lambda: nn.LeakyReLU(), (4,), {"slope": 0.01}),
    (lambda: nn.GELU(), (4,), {"approximate": "none"}),
    (lambda: nn.ReLU6(), (4,), {"maximum": 6.0, "minimum": None}),
    (lambda: nn.Hardtanh(-2.0, 3.0), (4,), {"maximum": 3.0, "minimum": -2.0}),
    (lambda: nn.Softmax(-1), (4, 5), {"axis": -1}),
    (lambda: nn.Dropout(0.25), (4,), {"rate": 0.25, "training": True}),
    (lambda: nn.LSTM(5, 3), (4, 5), {"hidden": 3, "layers": 1, "batch_first": False}),
]


@pytest.mark.parametrize(("make", "shape", "expected"), SETTINGS)
def test_settings(make, shape, expected):
    x = normal(2, *shape)
    found = inspect(make(), None, None, x, request=Request(backward=False)).calls[0]
    assert {name: found.attributes.get(name) for name in expected} == expected


def test_ops_between_layers_and_their_constants():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return torch.softmax(self.fc(x).masked_fill(x > 0, -1e9), -1)

    request = Request(ops=frozenset({""}))
    net = Net()
    found = inspect(net, None, lambda x: net(x).square().sum(), normal(2, 4), request=request)
    ops = {call.type: call for call in found.calls if call.path.startswith("/")}
    assert ops["masked_fill"].outputs[0].peak == np.float32(1e9)
    assert -1e9 in [x for call in ops.values() for x in call.attributes.get("constants", ())]
    assert list(ops) == ["addmm", "gt", "masked_fill", "_softmax"]
    both = Request(ops=frozenset({"", "fc"}))
    found = inspect(net, None, lambda x: net(x).square().sum(), normal(2, 4), request=both)
    assert [call.path for call in found.calls if call.type == "addmm"] == ["fc/0:addmm"]


def test_what_is_written_in_place_is_told_apart():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    found = inspect(net, None, None, normal(2, 4), request=Request(keep=ALL)).layers()
    before, after = found["1"][0].inputs[0].values, found["1"][0].outputs[0].values
    assert (before < 0).any()
    np.testing.assert_array_equal(np.maximum(before, 0), after)
    np.testing.assert_array_equal(found["0"][0].outputs[0].values, before)
    went = found["2"][0].grad_inputs[0].values
    np.testing.assert_array_equal(found["1"][0].grad_outputs[0].values, went)
    np.testing.assert_array_equal(found["1"][0].grad_inputs[0].values, went * (before > 0))


@pytest.mark.parametrize("how", ["compiled", "checkpointed"])
def test_what_runs_past_hooks_or_twice_is_seen_once(how):
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    amp = mp.prepare(net, torch.optim.SGD(net.parameters(), 0.1), "mixed_bfloat16")
    x = torch.from_numpy(normal(2, 4)).requires_grad_()
    run = torch.compile(net, backend="eager") if how == "compiled" else None

    def loss(x):
        out = run(x) if run else checkpoint(net, x, use_reentrant=False)
        return out.float().sum()

    found = inspect(net, amp, loss, x)
    plain = inspect(net, amp, lambda x: net(x).float().sum(), x)
    assert [call.path for call in found.calls] == ["", "0", "1"]
    assert found.loss == plain.loss
    assert found.grads["0.weight"].digest == plain.grads["0.weight"].digest
    assert x.grad is None


def test_a_tensor_that_two_layers_take_has_the_sum_of_both_gradients():
    net = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def loss(x):
        y = net[0](x)
        return (net[1](y) + net[2](y.detach()) + y).sum()

    found = inspect(net, None, loss, normal(2, 4), request=Request(keep=ALL)).layers()
    through = np.ones((2, 4)) @ net[1].weight.detach().numpy() + 1
    for one in (found["0"][0].grad_outputs[0], found["1"][0].grad_inputs[0]):
        np.testing.assert_allclose(one.values, through, rtol=1e-5)
    assert found["2"][0].grad_inputs == (None,)


def test_open_gradients_are_refused():
    net = nn.Linear(4, 4)
    amp = mp.prepare(net, torch.optim.SGD(net.parameters(), 0.1), "mixed_float16")
    x = torch.from_numpy(normal(2, 4))
    with amp.autocast():
        loss = net(x).sum()
    amp.backward(loss)
    with pytest.raises(mp.BackendError):
        inspect(net, amp, lambda x: net(x).sum(), x)
    amp.abort_step()
    assert inspect(net, amp, lambda x: net(x).sum(), x).calls
