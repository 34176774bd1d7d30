"""What a Keras model runs in: traced, and left as it was."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import mpcore as mp

X = np.random.default_rng(3).normal(size=(16, 8)).astype("f4")
Y = (np.arange(16) % 4).astype("i4")


def prepared(policy: str = "mixed_bfloat16"):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(8, name="fc1"),
            layers.BatchNormalization(name="norm"),
            layers.Dropout(0.5, name="drop"),
            layers.ReLU(name="act"),
            layers.Dense(4, name="fc2"),
        ]
    )
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    amp = mp.prepare(model, keras.optimizers.SGD(0.1, momentum=0.9), policy)
    return amp, lambda x, y: cross_entropy(y, model(x, training=True))


def state(amp: mp.Amp) -> list[np.ndarray]:
    optimizer = amp.optimizer
    found = [*amp.model.weights, *optimizer.variables, *optimizer.inner_optimizer.variables]
    seeds = [v for layer in amp.model.layers for v in layer.non_trainable_variables]
    return [keras.ops.convert_to_numpy(v) for v in (*found, *seeds)]


def test_nothing_is_left_changed() -> None:
    amp, loss_fn = prepared("mixed_float16")
    amp.step(loss_fn, X, Y)
    before, call = state(amp), keras.layers.Layer.__call__
    found = mp.observe(amp, X, Y, loss_fn=loss_fn)
    assert found.agreement == 1
    for ours, theirs in zip(before, state(amp), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert keras.layers.Layer.__call__ is call
    after = amp.step(loss_fn, X, Y).loss
    twin, twin_loss = prepared("mixed_float16")
    for _ in range(2):
        result = twin.step(twin_loss, X, Y)
    assert after == result.loss


def test_operations_forward_and_backward() -> None:
    amp, loss_fn = prepared()
    found = mp.observe(amp, X, Y, loss_fn=loss_fn)
    (call,) = found["fc2"].seen.calls
    low = ("bfloat16",)
    assert (call.came, call.params, call.kernels, call.went) == (low, ("float32",), low, low)
    assert (call.grad_came, call.grad_kernels, call.grad_went) == (low, low, low)
    (norm,) = found["norm"].seen.calls
    assert (norm.kernels, norm.grad_kernels, norm.went) == (("float32",), ("float32",), low)
    loss = [row for row in found.ops if row.seen.path == "(loss)"]
    assert {row.seen.kernels for row in loss} == {("float32",)}


@pytest.mark.parametrize("where", ["compute", "output"])
def test_a_layer_that_does_something_else_is_found(where: str) -> None:
    amp, loss_fn = prepared()
    layer = amp.model.get_layer("fc1")
    planned = layer.call
    if where == "compute":
        full = lambda x: tf.matmul(tf.cast(x, "float32"), layer.kernel.value)  # noqa: E731
        with amp.unguarded():
            layer.call = lambda x, **_: tf.cast(full(x), "bfloat16")
    else:
        with amp.unguarded():
            layer.call = lambda x, **_: tf.cast(planned(x), "float32")
    found = mp.observe(amp, X, Y, loss_fn=loss_fn)
    assert [row.path for row in found.differing] == ["fc1"]
    words = {"compute": "computed in float32", "output": "handed on float32"}
    assert words[where] in str(found)


def test_whole_numbers_that_are_rounded_are_told() -> None:
    amp, loss_fn = prepared()
    (note,) = mp.observe(amp, np.full_like(X, 2909.0), Y, loss_fn=loss_fn).notes
    assert "batch[0]: whole numbers up to 2909" in note
    assert mp.observe(amp, X, Y, loss_fn=loss_fn).notes == ()


def test_not_strict_runs_by_layer_where_there_is_no_op_list() -> None:
    with pytest.raises(mp.BackendError, match="by='op' is not possible"):
        prepared("autocast_bfloat16")
    model = keras.Sequential([layers.Input((8,)), layers.Dense(4, name="fc")])
    with pytest.warns(mp.MpcoreWarning, match="by='op' becomes by='layer'"):
        amp = mp.prepare(model, keras.optimizers.SGD(0.1), "autocast_bfloat16", strict=False)
    assert mp.observe(amp, X)["fc"].seen.calls[0].kernels == ("bfloat16",)


def test_what_is_refused() -> None:
    amp, _ = prepared()
    with pytest.raises(mp.BackendError, match="must return one number"):
        mp.observe(amp, X, Y, loss_fn=lambda x, y: amp.model(x))
    with pytest.raises(mp.BackendError, match="must not be prepared to be foretold"):
        mp.explain(amp.model, "mixed_bfloat16", X)
    amp.release()
    with pytest.raises(mp.BackendError, match="by='op' is not possible in"):
        mp.explain(amp.model, "autocast_bfloat16", X)
    with pytest.raises(mp.BackendError, match="`device` must be 'cpu'"):
        mp.explain(amp.model, "mixed_bfloat16", X, device="tpu")
