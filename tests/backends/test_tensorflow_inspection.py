"""What an inspection of a Keras model turns to channels first, and calls its settings."""

from __future__ import annotations

import functools
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import mpcore as mp
from mpcore.tools.inspection import Request, inspect, summarize

RNG = np.random.default_rng(11)
FIRST = Request(layout="channels_first", keep=frozenset("*"))
LAST = Request(keep=frozenset("*"))


def text():
    tokens = layers.Input((8,), dtype="int32")
    x = layers.Embedding(20, 6, name="embed")(tokens)
    x = layers.Conv1D(5, 3, name="conv")(x)
    x = layers.SpatialDropout1D(0.2, name="drop")(layers.ReLU(name="act")(x))
    x = layers.GlobalMaxPooling1D(name="pool")(x)
    return keras.Model(tokens, layers.Dense(3, name="head")(x))


def flat():
    return keras.Sequential(
        [
            layers.Input((6, 5, 2)),
            layers.Conv2D(4, 3, name="conv"),
            layers.Flatten(name="flat"),
            layers.Activation("tanh", name="tanh"),
            layers.Dense(3, name="head"),
        ]
    )


def next_block():
    image = layers.Input((6, 5, 3))
    x = layers.DepthwiseConv2D(3, padding="same", name="conv")(image)
    x = layers.Dense(8, name="wide")(layers.LayerNormalization(name="norm")(x))
    x = layers.Dense(3, name="narrow")(layers.Activation("gelu", name="gelu")(x))
    x = layers.ReLU(name="after")(layers.Add(name="add")([image, x]))
    return keras.Model(image, layers.Dense(3, name="head")(layers.Flatten(name="flat")(x)))


def squeezed():
    image = layers.Input((6, 5, 3))
    x = layers.Conv2D(4, 3, name="conv")(image)
    gate = layers.GlobalAveragePooling2D(keepdims=True, name="pool")(x)
    gate = layers.Conv2D(4, 1, activation="sigmoid", name="gate")(gate)
    x = layers.Multiply(name="scaled")([x, gate])
    return keras.Model(image, layers.GlobalMaxPooling2D(name="head")(x))


def tokens_of_patches():
    image = layers.Input((4, 6, 3))
    x = layers.Conv2D(8, 2, 2, name="patches")(image)
    x = layers.Reshape((6, 8), name="rows")(x)
    x = layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    return keras.Model(image, layers.Softmax(name="head")(x))


def volume():
    return keras.Sequential(
        [
            layers.Input((4, 5, 6, 2)),
            layers.Conv3D(3, 3, name="conv"),
            layers.BatchNormalization(name="norm"),
            layers.AveragePooling3D(2, name="pool"),
        ]
    )


# By model: for each layer the shape of its first input and of its first output, without the batch,
# as torch's layer would have them.
SHAPES = {
    text: {
        "embed": [(8,), (8, 6)],
        "conv": [(6, 8), (5, 6)],
        "act": [(5, 6), (5, 6)],
        "drop": [(5, 6), (5, 6)],
        "pool": [(5, 6), (5,)],
    },
    flat: {"conv": [(2, 6, 5), (4, 4, 3)], "flat": [(4, 4, 3), (48,)], "tanh": [(48,), (48,)]},
    next_block: {
        "conv": [(3, 6, 5), (3, 6, 5)],
        "norm": [(6, 5, 3), (6, 5, 3)],
        "wide": [(6, 5, 3), (6, 5, 8)],
        "gelu": [(6, 5, 8), (6, 5, 8)],
        "add": [(3, 6, 5), (3, 6, 5)],
        "after": [(3, 6, 5), (3, 6, 5)],
        "flat": [(3, 6, 5), (90,)],
    },
    squeezed: {
        "pool": [(4, 4, 3), (4, 1, 1)],
        "gate": [(4, 1, 1), (4, 1, 1)],
        "scaled": [(4, 4, 3), (4, 4, 3)],
        "head": [(4, 4, 3), (4,)],
    },
    tokens_of_patches: {
        "patches": [(3, 4, 6), (8, 2, 3)],
        "rows": [(8, 2, 3), (6, 8)],
        "attention": [(6, 8), (6, 8)],
        "head": [(6, 8), (6, 8)],
    },
    volume: {
        "conv": [(2, 4, 5, 6), (3, 2, 3, 4)],
        "norm": [(3, 2, 3, 4), (3, 2, 3, 4)],
        "pool": [(3, 2, 3, 4), (3, 1, 1, 2)],
    },
}


def batch_of(model):
    shape = (2, *model.inputs[0].shape[1:])
    if model.inputs[0].dtype == "int32":
        return RNG.integers(0, 20, shape).astype("i4")
    return RNG.normal(size=shape).astype("f4")


def by_hand(value, shape):
    """Return a channels-last tensor, or one flattened, as torch would hold it."""
    if value.shape[1:] == shape and value.ndim > 2:
        return value
    return np.moveaxis(value, -1, 1)


@pytest.mark.parametrize("make", SHAPES, ids=lambda make: make.__name__)
def test_channels_come_first_where_torch_has_them_first(make):
    keras.utils.set_random_seed(0)
    model = make()
    x = batch_of(model)
    found = inspect(model, None, None, x, request=FIRST).layers()
    raw = inspect(model, None, None, x, request=LAST).layers()
    for path, expected in SHAPES[make].items():
        call, own = found[path][0], raw[path][0]
        assert [call.inputs[0].shape[1:], call.outputs[0].shape[1:]] == expected, path
        pairs = [(call.outputs[0], own.outputs[0]), (call.grad_outputs[0], own.grad_outputs[0])]
        for turned, plain in pairs:
            if turned.values.ndim > 2:
                np.testing.assert_array_equal(turned.values, by_hand(plain.values, expected[1]))


def test_a_flattened_image_is_in_torchs_order():
    model = flat()
    found = inspect(model, None, None, batch_of(model), request=FIRST).layers()
    image = found["conv"][0].outputs[0].values
    for tensor in (found["flat"][0].outputs[0], found["tanh"][0].inputs[0]):
        np.testing.assert_array_equal(tensor.values, image.reshape(2, -1))
    after = found["tanh"][0].outputs[0].values
    np.testing.assert_allclose(after, np.tanh(image.reshape(2, -1)), rtol=1e-5)
    np.testing.assert_array_equal(found["head"][0].inputs[0].values, after)
    grads = found["flat"][0].grad_outputs[0].values
    np.testing.assert_array_equal(grads, found["conv"][0].grad_outputs[0].values.reshape(2, -1))


def test_the_batch_is_turned_and_left_alone():
    model, x = flat(), tf.constant(batch_of(flat()))
    found = inspect(model, None, None, x, request=FIRST)
    assert found.batch[0].digest == summarize(np.moveaxis(x.numpy(), -1, 1)).digest
    assert not any(name.startswith("_mpcore") for name in vars(x))


def test_functions_run_eagerly_and_seeds_stay():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [layers.Input((8,)), layers.Dense(8), layers.Dropout(0.5, name="dropout")]
    )
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "mixed_float16")
    x = RNG.normal(size=(4, 8)).astype("f4")

    def noisy(x):
        noise = tf.random.normal((4, 8)) + keras.random.normal((4, 8))
        return tf.reduce_mean(tf.cast(model(x, training=True), tf.float32) * noise)

    tf.random.set_seed(1)
    drawn = [inspect(model, amp, tf.function(noisy), x) for _ in range(2)]
    assert [call.path for call in drawn[0].calls] == ["", "dense", "dropout"]
    assert drawn[0].loss == drawn[1].loss
    assert not tf.config.functions_run_eagerly()
    after = noisy(tf.constant(x)).numpy()
    assert after == pytest.approx(drawn[0].loss, rel=1e-6)


SETTINGS = [
    (
        lambda: layers.Dense(3, activation="gelu"),
        (4,),
        {"activation": "gelu", "approximate": "none"},
    ),
    (
        lambda: layers.Activation(functools.partial(keras.activations.gelu, approximate=True)),
        (4,),
        {"approximate": "tanh"},
    ),
    (lambda: layers.BatchNormalization(), (4,), {"eps": 1e-3, "momentum": 0.01, "affine": True}),
    (lambda: layers.BatchNormalization(scale=False), (4,), {"affine": "center"}),
    (lambda: layers.LayerNormalization(axis=(1, 2)), (4, 5), {"eps": 1e-3, "axes": 2}),
    (lambda: layers.GroupNormalization(2), (4, 4), {"eps": 1e-3, "groups": 2}),
    (
        lambda: layers.Conv2D(4, 3, padding="same"),
        (6, 6, 2),
        {"kernel": 3, "stride": 1, "padding": 1, "groups": 1},
    ),
    (
        lambda: layers.Conv2D(4, 3, 2, padding="same"),
        (6, 6, 2),
        {"stride": 2, "padding": [[0, 1], [0, 1]]},
    ),
    (
        lambda: layers.Conv2D(4, (3, 1), dilation_rate=(2, 1)),
        (6, 6, 2),
        {"kernel": [3, 1], "dilation": [2, 1], "padding": 0},
    ),
    (lambda: layers.Conv1D(4, 3, padding="causal"), (6, 2), {"padding": [[2, 0]]}),
    (lambda: layers.DepthwiseConv2D(3), (6, 6, 2), {"groups": 2, "padding": 0}),
    (
        lambda: layers.Conv2DTranspose(4, 4, 2, padding="same"),
        (6, 6, 2),
        {"kernel": 4, "stride": 2, "padding": 1},
    ),
    (
        lambda: layers.Conv2DTranspose(4, 3, 2, padding="same"),
        (6, 6, 2),
        {"padding": [[0, 1], [0, 1]]},
    ),
    (lambda: layers.MaxPooling2D(2), (6, 6, 2), {"kernel": 2, "stride": 2, "padding": 0}),
    (
        lambda: layers.AveragePooling2D(3, 2, padding="same"),
        (6, 6, 2),
        {"count_include_pad": False},
    ),
    (lambda: layers.GlobalAveragePooling2D(), (6, 6, 2), {"output_size": 1}),
    (lambda: layers.LeakyReLU(), (4,), {"slope": 0.3}),
    (lambda: layers.ReLU(max_value=6.0), (4,), {"maximum": 6.0}),
    (lambda: layers.ELU(0.5), (4,), {"alpha": 0.5}),
    (lambda: layers.Softmax(1), (4, 5), {"axis": 1}),
    (lambda: layers.Dropout(0.25), (4,), {"rate": 0.25, "training": True}),
    (
        lambda: layers.LSTM(3),
        (4, 5),
        {"hidden": 3, "layers": 1, "bidirectional": False, "bias": True},
    ),
    (lambda: layers.Bidirectional(layers.GRU(3)), (4, 5), {"hidden": 3, "bidirectional": True}),
]


@pytest.mark.parametrize(("make", "shape", "expected"), SETTINGS)
def test_settings(make, shape, expected):
    model = keras.Sequential([layers.Input(shape), layers.Dense(shape[-1], name="in"), make()])
    found = inspect(model, None, None, batch_of(model), request=Request(backward=False)).calls[-1]
    assert {name: found.attributes.get(name) for name in expected} == expected


def test_a_frozen_norm_does_not_train():
    model = keras.Sequential([layers.Input((4,)), layers.Dense(4), layers.BatchNormalization()])
    model.layers[-1].trainable = False
    found = inspect(model, None, None, batch_of(model))
    assert found.calls[-1].attributes["training"] is False
    assert found.calls[1].attributes["training"] is True


def test_weights_that_a_layer_assigns_are_put_back():
    inner = layers.Dense(4, name="inner")
    model = keras.Sequential([layers.Input((4,)), layers.SpectralNormalization(inner)])
    before = [variable.numpy() for variable in model.variables]
    x = batch_of(model)
    drawn = [inspect(model, None, None, x).loss for _ in range(2)]
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert drawn[0] == pytest.approx(drawn[1], rel=1e-6)
    model(x, training=True)
    assert not np.array_equal(inner.kernel.numpy(), before[0])


REPLICAS = """
import keras, numpy as np, tensorflow as tf
import mpcore as mp
from mpcore.tools.inspection import inspect

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "float32")
try:
    inspect(model, amp, lambda x: tf.reduce_sum(model(x)), np.ones((4, 4), "f4"))
except mp.BackendError as error:
    print(error)
"""


def test_a_weight_that_is_handed_to_a_layer_is_an_input_of_it():
    class Asked(keras.Model):
        def __init__(self):
            super().__init__()
            self.asked = self.add_weight(shape=(2, 3), name="asked")
            self.head = layers.Dense(3, name="head")

        def call(self, x):
            return self.head(self.asked) + self.head(x)

    model, x = Asked(), tf.constant(RNG.normal(size=(2, 3)), "float32")
    model(x)
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "float32")
    seen = inspect(model, amp, lambda x: tf.reduce_sum(model(x)), x)
    first = seen.layers()["head"][0]
    np.testing.assert_allclose(first.inputs[0].norm, np.linalg.norm(model.asked), rtol=1e-6)
    assert first.inputs[0].shape == (2, 3)


def test_several_replicas_are_refused():
    """Logical devices must be said before TensorFlow starts: in a process of its own."""
    command = [sys.executable, "-c", REPLICAS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "a model on several replicas cannot be inspected" in done.stdout
    assert "without the strategy" in done.stdout
