"""tf.keras: what an example multiplies, in which dtype, told before a model is prepared."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from heard import told

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backend("tensorflow")

import keras  # noqa: E402
from keras import layers, ops  # noqa: E402

import mpcore as mp  # noqa: E402


class Projected(keras.Model):
    """A dense layer, a product of the model's own, and another dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers.Dense(16), layers.Dense(4)
        self.own = self.add_weight(shape=(16, 16), name="own")
        self(np.ones((2, 16), "f4"))

    def call(self, x):
        return self.last(ops.matmul(self.first(x), self.own))


def recurrent(kind=layers.LSTM, **given):
    inputs = keras.Input((5, 8))
    return keras.Model(inputs, layers.Dense(3)(kind(6, **given)(inputs)))


def gated_both_ways():
    inputs = keras.Input((5, 8))
    return keras.Model(inputs, layers.Bidirectional(layers.GRU(6))(layers.Masking()(inputs)))


def stacked():
    inputs = keras.Input((5, 8))
    cells = [layers.SimpleRNNCell(6), layers.LSTMCell(4)]
    return keras.Model(inputs, layers.RNN(cells)(inputs))


def image():
    inputs = keras.Input((8, 8, 4))
    x = layers.Conv2D(6, 3)(inputs)
    x = layers.DepthwiseConv2D(3)(x)
    x = layers.Conv2DTranspose(4, 3)(x)
    x = layers.Conv2D(8, 3, groups=4)(x)
    return keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def attending():
    inputs = keras.Input((5, 16))
    return keras.Model(inputs, layers.MultiHeadAttention(2, 8)(inputs, inputs))


MODELS = {
    # 16 x 16 twice for two rows, and the head
    "a product of its own": (Projected, (2, 16), 2 * (256 + 256 + 64)),
    "recurrent": (recurrent, (2, 5, 8), 2 * (5 * (8 + 6) * 24 + 18)),
    "gated both ways": (gated_both_ways, (2, 5, 8), 2 * 2 * 5 * (8 + 6) * 18),
    "stacked": (stacked, (2, 5, 8), 2 * 5 * ((8 + 6) * 6 + (6 + 4) * 16)),
    "unrolled": (partial(recurrent, unroll=True), (2, 5, 8), 2 * (5 * (8 + 6) * 24 + 18)),
    "image": (
        image,
        (2, 8, 8, 4),
        2 * (36 * 6 * 36 + 16 * 6 * 9 + 16 * 6 * 36 + 16 * 8 * 9 + 16),
    ),
    "attending": (attending, (2, 5, 16), 2 * (3 * 5 * 16 * 16 + 2 * 2 * 25 * 8 + 5 * 16 * 16)),
}


@pytest.mark.parametrize("name", MODELS)
def test_multiply_adds_are_those_that_one_counts_by_hand(name):
    make, shape, number = MODELS[name]
    model = make()
    before = [np.array(v) for v in model.variables]
    policies = [(layer.dtype_policy, layer.call) for layer in model._flatten_layers()]
    found = mp.explain(model, "mixed_bfloat16", np.ones(shape, "f4"))
    assert sum(found.multiply_adds.values()) == number
    assert found.multiply_adds.get("float32", 0) == (512 if make is Projected else 0)
    assert mp.explain(model, "float32", np.ones(shape, "f4")).multiply_adds == {"float32": number}
    assert all(np.array_equal(a, b) for a, b in zip(before, model.variables, strict=True))
    now = [(layer.dtype_policy, layer.call) for layer in model._flatten_layers()]
    assert now == policies


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16"])
@pytest.mark.parametrize("name", ["a product of its own", "recurrent"])
def test_prepare_with_an_example_tells_which_multiply_adds_stay_float32(policy, name):
    make, shape, _ = MODELS[name]
    said = prepared(make(), np.ones(shape, "f4"), policy)
    wide = f"{policy}: 44.4 % of the multiply-adds of `example` are in float32: "
    assert said == ([wide + "matmul in the model"] if make is Projected else [])


def test_several_inputs_are_a_list_where_a_model_takes_one_argument():
    one, other = keras.Input((8,)), keras.Input((4,))
    model = keras.Model([one, other], layers.Dense(3)(layers.Concatenate()([one, other])))
    a, b = np.ones((2, 8), "f4"), np.ones((2, 4), "f4")
    for example in ((a, b), ([a, b],)):
        assert mp.explain(model, "mixed_bfloat16", *example).multiply_adds == {"bfloat16": 72}
    assert prepared(model, (a, b)) == []

    class Masked(keras.Model):
        def __init__(self):
            super().__init__()
            self.fc = layers.Dense(3)
            self(a)

        def call(self, x, mask=None):
            return self.fc(x if mask is None else x * ops.cast(mask, x.dtype))

    found = mp.explain(Masked(), "mixed_bfloat16", a, np.ones((2, 8), "f4"))
    assert found.multiply_adds == {"bfloat16": 48}


def prepared(model, example, policy="mixed_bfloat16"):
    said = told(lambda: mp.prepare(model, keras.optimizers.SGD(0.1), policy, example=example))
    return [str(one.message) for one in said if "`example`" in str(one.message)]


class Own(keras.Model):
    """A dense layer that is called as a function says."""

    def __init__(self, run) -> None:
        super().__init__()
        self.fc, self.run = layers.Dense(4), run
        self.fc.build((2, 4))
        self.built = True

    def wide(self, x):
        return ops.cast(self.fc(x), "float32")

    def call(self, x):
        return self.run(self, x)


UNKNOWN = {
    "a loop that ends by values": lambda own, x: ops.while_loop(
        lambda x: ops.sum(x) < 9, lambda x: (own.wide(x),), (x,), maximum_iterations=3
    )[0],
    "a branch": lambda own, x: tf.cond(tf.reduce_sum(x) < 9, lambda: own.wide(x), lambda: x),
    "one of three": lambda own, x: ops.switch(
        ops.cast(ops.sum(x), "int32"), [own.wide, own.wide, own.wide], x
    ),
    "Python": lambda own, x: tf.ensure_shape(tf.py_function(own.wide, [x], tf.float32), (2, 4)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_depends_on_values_is_not_known(name):
    (line,) = prepared(Own(UNKNOWN[name]), np.ones((2, 4), "f4"))
    assert "in 16 bits is not known: " in line
    assert "multiplies in" in line


def test_what_cannot_be_traced_is_not_known():
    model = Own(lambda own, x: own.fc(x))
    model.run = lambda own, x: own.fc(x) if float(ops.sum(x)) < 9 else x
    (line,) = prepared(model, np.ones((2, 4), "f4"))
    assert "in 16 bits is not known: Own cannot be traced: " in line
    assert "by=" not in line


def test_what_a_model_says_itself_is_told_whole():
    def says(own, x):
        msg = "no rank; use rows"
        raise ValueError(msg)

    model = Own(lambda own, x: own.fc(x))
    model.run = says
    (line,) = prepared(model, np.ones((2, 4), "f4"))
    assert "Own cannot be traced: no rank; use rows" in line
    assert "keras.ops.cond" not in line
