"""tf.keras: layers of unknown classes are known by what they compute, and the rest is told."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backend("tensorflow")

import keras  # noqa: E402
from keras import ops  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore import MpcoreWarning  # noqa: E402
from mpcore.backend.backend import load_backend  # noqa: E402


class Own(keras.layers.Layer):
    """Weights of the shapes that a class names, each of the last axis or a number."""

    shapes: tuple[tuple[int | None, ...], ...] = ((None,),)

    def build(self, shape):
        last = shape[-1]
        self.w = [
            self.add_weight(shape=[n or last for n in each], name=f"w{i}")
            for i, each in enumerate(self.shapes)
        ]


class RootMeanSquare(Own):
    def call(self, x):
        return x * ops.rsqrt(ops.mean(ops.square(x), -1, keepdims=True) + 1e-6) * self.w[0]


class LowRank(Own):
    shapes = ((None, 2), (2, None))

    def call(self, x):
        return x + ops.matmul(ops.matmul(x, self.w[0]), self.w[1])


class Heads(Own):
    shapes = ((None, 2, 4),)

    def call(self, x):
        return ops.einsum("btn,nhs->bths", x, self.w[0])


class RawAttention(Own):
    shapes = ((None, None), (None, None))

    def call(self, x):
        q, k = x @ self.w[0], x @ self.w[1]
        return ops.softmax(q @ ops.transpose(k, (0, 2, 1))) @ x


class Gain(Own):
    def call(self, x):
        return x * self.w[0]


class Kernel(Own):
    shapes = ((3, None, None),)

    def call(self, x):
        return ops.conv(x, self.w[0], padding="same")


class Router(Own):
    shapes = ((None, 4),)

    def call(self, x):
        return ops.softmax(x @ self.w[0])


class NormedProduct(Own):
    shapes = ((None, None),)

    def call(self, x):
        x = x @ self.w[0]
        return x * ops.rsqrt(ops.mean(ops.square(x), -1, keepdims=True) + 1e-6)


class InFloat32(Own):
    shapes = ((None, None),)

    def call(self, x):
        return ops.cast(x, "float32") @ ops.cast(self.w[0], "float32")


def model_of(layer: keras.Layer) -> keras.Model:
    x = keras.Input((5, 8))
    return keras.Model(x, layer(keras.layers.Dense(8)(x)))


def layer_of(model: keras.Model) -> mp.Layer:
    return load_backend("tensorflow").layers(model)[2]


@pytest.mark.parametrize(
    ("cls", "category"),
    [
        (RootMeanSquare, "norm"),
        (LowRank, "linear"),
        (Heads, "linear"),
        (RawAttention, "attention"),
        (Gain, "other"),
        (Kernel, "conv"),
        (Router, "softmax"),
        (InFloat32, "other"),
    ],
)
def test_category_of_what_a_layer_computes(cls, category):
    found = layer_of(model_of(cls()))
    assert (found.category, found.unknown) == (category, "")


def told(model: keras.Model, policy: str = "mixed_bfloat16") -> tuple[mp.Amp, list[str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        amp = mp.prepare(model, keras.optimizers.SGD(0.1), policy)
    return amp, [str(w.message) for w in seen if issubclass(w.category, MpcoreWarning)]


def test_what_is_not_known_stays_float32_and_is_told():
    amp, (line,) = told(model_of(NormedProduct()))
    assert "NormedProduct (it computes bmm beside square, rsqrt, which want float32)" in line
    assert 'mp.register_layer(NormedProduct, "linear")' in line
    assert amp.plan.layers[2].compute == "float32"


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16; full layer=NormedProduct"])
def test_nothing_is_told_where_nothing_is_lost(policy):
    assert told(model_of(NormedProduct()), policy)[1] == []


def test_registered_class_is_what_was_said():
    mp.register_layer(NormedProduct, "linear")
    try:
        model = model_of(NormedProduct())
        amp, lines = told(model)
        assert lines == []
        assert amp.plan.layers[2].rule == "linear: lower"
        assert model.layers[2](np.zeros((2, 5, 8), "f4")).dtype == tf.bfloat16
    finally:
        mp.register_layer(NormedProduct, None)


def test_known_product_runs_in_bfloat16_and_trains():
    model = model_of(LowRank())
    amp, lines = told(model)
    assert lines == []
    x = np.random.default_rng(0).standard_normal((4, 5, 8)).astype("f4")
    seen = mp.observe(amp, x)
    assert seen.agreement == 1.0
    path = amp.plan.layers[2].path
    assert seen[path].seen.calls[0].kernels == ("bfloat16",)
    assert bool(amp.step(lambda x: ops.mean(ops.square(model(x))), x).stepped)
    assert [layer.category for layer in load_backend("tensorflow").layers(model)] == [
        "container",
        "linear",
        "linear",
    ]


def test_trial_leaves_weights_and_generators_alone():
    keras.utils.set_random_seed(3)
    model = model_of(LowRank())
    before = [w.numpy() for w in model.weights]
    state = np.random.get_state()[1].copy()  # noqa: NPY002  # what Keras seeds
    layer_of(model)
    for one, two in zip(before, (w.numpy() for w in model.weights), strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
