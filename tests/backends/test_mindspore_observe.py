"""What MindSpore really runs, in eager mode, and that it is left as it was."""

from __future__ import annotations

from collections import OrderedDict

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.ops.primitive import Primitive

import mpcore as mp

X = np.random.default_rng(3).normal(size=(16, 8)).astype("f4")
Y = (np.arange(16) % 4).astype("i4")


def prepared(policy: str = "mixed_float16"):
    ms.set_seed(0)
    net = nn.SequentialCell(
        OrderedDict(fc1=nn.Dense(8, 8), norm=nn.BatchNorm1d(8), act=nn.ReLU(), fc2=nn.Dense(8, 4))
    ).set_train()
    amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), policy)
    return amp, lambda x, y: ops.cross_entropy(net(x), y)


def state(amp: mp.Amp) -> list[np.ndarray]:
    optimizer = amp.optimizer
    params = [*amp.model.get_parameters(), *optimizer.get_parameters()]
    return [p.asnumpy().copy() for p in params]


def test_nothing_is_left_changed() -> None:
    amp, loss_fn = prepared()
    amp.step(loss_fn, X, Y)
    before, calls = state(amp), (nn.Cell.__call__, Primitive.__call__)
    drawn = ms.get_rng_state()
    found = mp.observe(amp, X, Y, loss_fn=loss_fn)
    assert found.agreement == 1
    for ours, theirs in zip(before, state(amp), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (nn.Cell.__call__, Primitive.__call__) == calls
    np.testing.assert_array_equal(drawn.asnumpy(), ms.get_rng_state().asnumpy())
    after = amp.step(loss_fn, X, Y).loss
    twin, twin_loss = prepared()
    for _ in range(2):
        result = twin.step(twin_loss, X, Y)
    assert after == result.loss


def test_primitives_and_gradients() -> None:
    amp, loss_fn = prepared()
    found = mp.observe(amp, X, Y, loss_fn=loss_fn)
    (call,) = found["fc2"].seen.calls
    low = ("float16",)
    assert (call.came, call.params, call.kernels, call.went) == (low, ("float32",), low, low)
    assert (call.grad_came, call.grad_went) == (low, low)
    assert found["norm"].seen.calls[0].kernels == ("float32",)


@pytest.mark.parametrize("where", ["compute", "output"])
def test_a_layer_that_does_something_else_is_found(where: str) -> None:
    amp, loss_fn = prepared()
    layer = amp.model.fc1
    if where == "compute":
        with amp.unguarded():
            layer.to_float(ms.float32)
        layer.construct = lambda x: nn.Dense.construct(layer, x).astype(ms.float16)
    else:
        layer.construct = lambda x: nn.Dense.construct(layer, x).astype(ms.float32)
    found = mp.observe(amp, X, Y, loss_fn=loss_fn)
    assert [row.path for row in found.differing] == ["fc1"]
    words = {"compute": "computed in float32", "output": "handed on float32"}
    assert words[where] in str(found)


def test_a_simulated_dtype_is_looked_for_in_the_values() -> None:
    amp, loss_fn = prepared("mixed_bfloat16")
    found = mp.observe(amp, X, Y, loss_fn=loss_fn)
    assert "bfloat16 is simulated" in found.how
    assert found["fc2"].seen.calls[0].kernels == ("bfloat16",)
    assert found.agreement == 1
    layer = amp.model.fc2
    layer.construct = lambda x: nn.Dense.construct(layer, x * 1.001)
    found = mp.observe(amp, X, Y, loss_fn=loss_fn)
    assert [row.path for row in found.differing] == ["fc2"]


def test_whole_numbers_that_are_rounded_are_told() -> None:
    amp, loss_fn = prepared()
    (note,) = mp.observe(amp, np.full_like(X, 2909.0), Y, loss_fn=loss_fn).notes
    assert "fc1: whole numbers up to 2909" in note


def test_not_strict_keeps_a_wrong_layer_full() -> None:
    net = nn.LSTM(8, 4)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    with pytest.raises(mp.BackendError, match="a float16 LSTM has wrong gradients"):
        mp.prepare(net, optimizer, "mixed_float16")
    with pytest.warns(mp.MpcoreWarning, match="stay float32"):
        amp = mp.prepare(net, optimizer, "mixed_float16", strict=False)
    row = mp.observe(amp, X[:, None], loss_fn=lambda x: net(x)[0].sum())[""]
    assert row.rule.startswith("degraded: wrong in mindspore on CPU")
    assert row.seen.calls[0].kernels == ("float32",)


def test_graph_mode_is_refused() -> None:
    amp, loss_fn = prepared()
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(mp.BackendError, match="must run in PYNATIVE_MODE"):
            mp.observe(amp, X, Y, loss_fn=loss_fn)
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
