"""The small Keras models of these tests, and what is compared of them."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import mpcore as mp

layers = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 6)).astype("f4")
Y = RNG.integers(0, 3, 16).astype("i4")
BAD = X.copy()
BAD[3] = np.inf
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Assigning(layers.Layer):
    """Assigns in its forward pass whatever a layer can hold."""

    def build(self, shape):
        self.trained = self.add_weight(shape=shape[-1:], initializer="ones", name="trained")
        self.branch = self.add_weight(shape=shape[-1:], initializer="ones", name="branch")
        self.mean = self.add_weight(shape=shape[-1:], trainable=False, name="mean")
        self.raw = tf.Variable(tf.zeros(shape[-1:]), trainable=False)

    def call(self, x, training=None):
        if training:
            mean = tf.reduce_mean(tf.cast(x, "float32"), axis=0)
            self.trained.assign(self.trained * 0.9 + 0.1 * mean)
            self.mean.assign(mean)
            self.raw.assign_add(mean)
            tf.cond(tf.reduce_all(mean != 7), lambda: self._branch(mean), lambda: 0.0)
        return x * tf.cast(self.trained, x.dtype)

    def _branch(self, mean):
        self.branch.assign(self.branch * 0.9 + mean)
        return 0.0


mp.register_layer(Assigning, "other")  # float32 is meant: no word of it in prepare


def net(norm=True):
    keras.utils.set_random_seed(0)
    hidden = [layers.Dense(8, name="fc1"), layers.ReLU(name="act")]
    hidden[1:1] = [layers.BatchNormalization(name="bn")] if norm else []
    return keras.Sequential([layers.Input((6,)), *hidden, layers.Dense(3, name="fc2")])


def assigning_net():
    keras.utils.set_random_seed(0)
    spectral = layers.SpectralNormalization(layers.Dense(8, name="fc1"), name="spectral")
    own = [layers.BatchNormalization(name="bn"), Assigning(name="own")]
    return keras.Sequential([layers.Input((6,)), spectral, *own, layers.Dense(3, name="fc2")])


def loss_of(model):
    return lambda x, y: CROSS_ENTROPY(y, model(x, training=True))


def arrays(model, amp=None):
    """Return every array of a model and its optimizer but for the state of the loss scale."""
    found = {v.path: v._value for v in model.variables}
    for layer in model._flatten_layers():
        raw = {k: v for k, v in vars(layer).items() if isinstance(v, tf.Variable)}
        found |= {f"{layer.name}.{k}": v for k, v in raw.items()}
    if amp is not None:
        scale = {id(amp.optimizer.dynamic_scale), id(amp.optimizer.counts)}
        slots = [v for v in amp.optimizer.variables if id(v) not in scale]
        found |= {f"slot {i} {v.path}": v._value for i, v in enumerate(slots)}
    return {name: _array(value) for name, value in found.items()}


def _array(value):
    return np.array(tf.cast(value, "float64") if value.dtype.is_floating else value)


def differing(before, after):
    assert before.keys() == after.keys()
    return [k for k in before if not np.array_equal(before[k], after[k], equal_nan=True)]
