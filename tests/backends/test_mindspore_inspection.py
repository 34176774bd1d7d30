"""What an inspection of a MindSpore network calls its settings, and what it leaves alone."""

from __future__ import annotations

from collections import OrderedDict

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.ops.primitive import Primitive

import mpcore as mp
from mpcore.tools.inspection import Request, inspect

RNG = np.random.default_rng(12)
ALL = frozenset("*")


def normal(*shape):
    return RNG.normal(size=shape).astype("f4")


SETTINGS = [
    (lambda: nn.BatchNorm2d(2), (2, 4, 4), {"eps": 1e-5, "momentum": 0.1, "affine": True}),
    (lambda: nn.BatchNorm1d(2, affine=False), (2,), {"affine": False}),
    (lambda: nn.LayerNorm((4, 5), 1, 1), (4, 5), {"eps": 1e-7, "axes": 2}),
    (lambda: nn.GroupNorm(2, 4, eps=1e-3), (4, 3, 3), {"eps": 1e-3, "groups": 2}),
    (
        lambda: nn.Conv2d(2, 4, 3),
        (2, 6, 6),
        {"kernel": 3, "stride": 1, "padding": 1, "groups": 1, "bias": False},
    ),
    (lambda: nn.Conv2d(2, 4, 3, 2), (2, 6, 6), {"stride": 2, "padding": [[0, 1], [0, 1]]}),
    (
        lambda: nn.Conv2d(2, 4, (3, 1), pad_mode="valid", dilation=(2, 1), has_bias=True),
        (2, 6, 6),
        {"kernel": [3, 1], "padding": 0, "dilation": [2, 1], "bias": True},
    ),
    (
        lambda: nn.Conv2d(2, 4, 3, pad_mode="pad", padding=(1, 1, 2, 2), group=2),
        (2, 6, 6),
        {"padding": [[1, 1], [2, 2]], "groups": 2},
    ),
    (lambda: nn.Conv1d(2, 4, 3, pad_mode="pad", padding=2), (2, 6), {"kernel": 3, "padding": 2}),
    (
        lambda: nn.Conv2dTranspose(2, 4, 4, 2),
        (2, 6, 6),
        {"kernel": 4, "stride": 2, "padding": 1, "bias": False},
    ),
    (lambda: nn.Conv2dTranspose(2, 4, 4, 2, "pad", 1), (2, 6, 6), {"padding": 1}),
    (lambda: nn.MaxPool2d(2), (2, 6, 6), {"kernel": 2, "stride": 1, "padding": 0}),
    (lambda: nn.MaxPool2d(3, 2, "same"), (2, 6, 6), {"padding": [[0, 1], [0, 1]]}),
    (
        lambda: nn.AvgPool2d(3, 1, "pad", 1, count_include_pad=False),
        (2, 6, 6),
        {"padding": 1, "count_include_pad": False},
    ),
    (lambda: nn.MaxPool1d(3, 2, "pad", 1), (2, 6), {"kernel": 3, "stride": 2, "padding": 1}),
    (
        lambda: nn.MaxPool2d(3, 2, "pad", (1, 0), ceil_mode=True),
        (2, 6, 6),
        {"padding": [[1, 1], [0, 0]], "ceil_mode": True},
    ),
    (lambda: nn.AdaptiveAvgPool2d(1), (2, 6, 6), {"output_size": 1}),
    (lambda: nn.LeakyReLU(), (4,), {"slope": 0.2}),
    (lambda: nn.GELU(), (4,), {"approximate": "tanh"}),
    (lambda: nn.GELU(approximate=False), (4,), {"approximate": "none"}),
    (lambda: nn.ReLU6(), (4,), {"maximum": 6.0}),
    (lambda: nn.Softmax(1), (4, 5), {"axis": 1}),
    (lambda: mint.nn.Softmax(-1), (4, 5), {"axis": -1}),
    (lambda: nn.Dropout(p=0.25), (4,), {"rate": 0.25, "training": True}),
    (lambda: nn.Dropout(0.9), (4,), {"rate": 0.1}),
    (lambda: nn.LSTM(5, 3, bidirectional=True), (4, 5), {"hidden": 3, "bidirectional": True}),
    (lambda: mint.nn.Linear(4, 2), (4,), {"bias": True}),
]


@pytest.mark.parametrize(("make", "shape", "expected"), SETTINGS)
def test_settings(make, shape, expected):
    net = make().set_train()
    found = inspect(net, None, None, normal(2, *shape), request=Request(backward=False)).calls[0]
    assert {name: found.attributes.get(name) for name in expected} == expected


def test_graph_mode_is_refused():
    net = nn.Dense(4, 2)
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(mp.BackendError, match=r"PYNATIVE_MODE, got GRAPH_MODE.*so call"):
            inspect(net, None, None, normal(2, 4))
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert inspect(net, None, None, normal(2, 4)).calls


def dropping():
    ms.set_seed(0)
    net = nn.SequentialCell(OrderedDict(fc=nn.Dense(8, 64), drop=nn.Dropout(p=0.5))).set_train()

    def loss(x):
        return ops.dropout(net(x), 0.5).mean()

    return net, loss, Tensor(normal(4, 8))


def masks(net, loss, x):
    (call,) = inspect(net, None, loss, x, request=Request(keep=ALL)).layers()["drop"]
    return call.outputs[0].values == 0


def test_masks_of_dropout_follow_the_seed():
    found = dropping()
    np.testing.assert_array_equal(masks(*found), masks(*found))
    first = masks(*found)
    ms.set_seed(1)
    assert not np.array_equal(first, masks(*found))
    assert 0.3 < first.mean() < 0.7


def test_masks_of_the_next_step_are_what_they_would_have_been():
    drawn = []
    for looks in (False, True):
        net, loss, x = dropping()
        for _ in range(2 if looks else 0):
            inspect(net, None, loss, x)
        ones = Tensor(np.ones((8, 8), "f4"))
        drawn.append([net(x).asnumpy() == 0 for _ in range(2)] + [ops.dropout(ones).asnumpy()])
    for own, other in zip(*drawn, strict=True):
        np.testing.assert_array_equal(own, other)


def test_classes_and_hooks_are_as_they_were():
    calls = nn.Cell.__call__, Primitive.__call__
    net, x = nn.Dense(4, 2), Tensor(normal(2, 4))
    inspect(net, None, None, x, request=Request(ops=ALL))
    assert (nn.Cell.__call__, Primitive.__call__) == calls
    assert not x.hooks()


def test_a_tensor_that_two_layers_take_has_the_sum_of_both_gradients():
    net = nn.SequentialCell(OrderedDict(fc1=nn.Dense(4, 4), fc2=nn.Dense(4, 4), fc3=nn.Dense(4, 4)))

    def loss(x):
        y = net.fc1(x)
        return (net.fc2(y) + net.fc3(ops.stop_gradient(y)) + y).sum()

    found = inspect(net, None, loss, normal(2, 4), request=Request(keep=ALL)).layers()
    through = np.ones((2, 4)) @ net.fc2.weight.asnumpy() + 1
    for sketch in (found["fc1"][0].grad_outputs[0], found["fc2"][0].grad_inputs[0]):
        np.testing.assert_allclose(sketch.values, through, rtol=1e-5)
    assert found["fc3"][0].grad_inputs == (None,)


def test_a_simulated_dtype_is_named():
    net = nn.SequentialCell(OrderedDict(fc1=nn.Dense(4, 4), fc2=nn.Dense(4, 4)))
    amp = mp.prepare(net, nn.SGD(net.trainable_params(), 0.1), "mixed_bfloat16")
    found = inspect(net, amp, lambda x: net(x).sum(), normal(2, 4))
    assert "bfloat16 is simulated" in found.how
    calls = found.layers()
    assert calls["fc1"][0].outputs[0].dtype == calls["fc2"][0].inputs[0].dtype == "bfloat16"
    assert calls["fc2"][0].grad_inputs[0].dtype == "bfloat16"
    assert found.batch[0].dtype == calls[""][0].outputs[0].dtype == "float32"


def test_outputs_that_no_kernel_writes_are_left_out():
    net, x = nn.BatchNorm2d(3).set_train(), normal(4, 3, 2, 2)
    request = Request(ops=ALL, keep=ALL)
    ops_ = [c for c in inspect(net, None, None, x, request=request).calls if c.category == "op"]
    (found,) = [call for call in ops_ if call.type == "BatchNorm"]
    assert [one.shape for one in found.outputs] == [x.shape, (3,), (3,)]
    np.testing.assert_allclose(found.outputs[1].values, x.mean((0, 2, 3)), atol=1e-6)
