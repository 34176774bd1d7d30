"""Where Keras and TensorFlow are known to differ: each shown on a few numbers."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PROOFS"]


def _biased_moving_variance() -> float:
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    norm = keras.layers.BatchNormalization(momentum=0.0, dtype="float32")
    norm(x, training=True)
    unbiased = x.var(0, ddof=1)
    return _relative(norm.moving_variance.numpy(), unbiased)


def _bias_gradient_in_bfloat16() -> float:
    layer = keras.layers.Conv2D(2, 1, dtype="mixed_bfloat16")
    x = np.zeros((1, 64, 64, 1), np.float32)
    layer.build(x.shape)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.cast(layer(x), tf.float32))
    found = tape.gradient(loss, layer.bias.value)
    return _relative(tf.cast(found, tf.float32).numpy(), np.full(2, 64.0 * 64.0))


def _max_pool_hands_every_tie_the_gradient() -> float:
    x = tf.ones((1, 2, 2, 2, 1))
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = keras.layers.MaxPooling3D(2)(x)
    total = tf.reduce_sum(tape.gradient(found, x))
    return _relative(total.numpy()[None], np.ones(1))


def _place_of_adams_eps() -> float:
    grad, eps, beta = 1e-7, 1e-8, 0.999
    weight = keras.Variable(np.zeros(1, np.float32))
    adam = keras.optimizers.Adam(1.0, beta_1=0.9, beta_2=beta, epsilon=eps)
    adam.build([weight])
    adam.apply([tf.constant([grad])])
    after = -grad / (sqrt(grad**2) + eps)
    return _relative(weight.numpy(), np.array([after]))


def _one_bias_in_lstm() -> float:
    """Return how far the bias lies from the sum of two that each move by its gradient."""
    layer, rate = keras.layers.LSTM(3, dtype="float32"), 0.5
    x = tf.constant(np.random.default_rng(0).normal(size=(2, 4, 2)), tf.float32)
    layer.build(x.shape)
    bias = layer.cell.bias
    sgd = keras.optimizers.SGD(rate)
    sgd.build([bias])
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(x))
    grad, before = tape.gradient(total, bias.value), bias.numpy()
    sgd.apply([grad], [bias])
    return _relative(bias.numpy() - before, -2 * rate * grad.numpy())


def _double_rounding_before_bias() -> float:
    rng = np.random.default_rng(0)
    layer = keras.layers.Dense(64, dtype="mixed_bfloat16")
    x = rng.normal(size=(64, 16)).astype(np.float32)
    layer.build(x.shape)
    layer.bias.assign(rng.normal(size=64))
    low = [tf.cast(a, tf.bfloat16) for a in (x, layer.kernel.value, layer.bias.value)]
    wide = [tf.cast(a, tf.float32) for a in low]
    once = tf.cast(wide[0] @ wide[1] + wide[2], tf.bfloat16)
    return _relative(*(tf.cast(a, tf.float32).numpy() for a in (layer(x), once)))


def _relative(found: Any, right: Any) -> float:
    return float(np.linalg.norm(np.asarray(found, np.float64) - right) / np.linalg.norm(right))


PROOFS: dict[str, Callable[[], float]] = {
    "biased_moving_variance": _biased_moving_variance,
    "bias_gradient_in_bfloat16": _bias_gradient_in_bfloat16,
    "max_pool_hands_every_tie_the_gradient": _max_pool_hands_every_tie_the_gradient,
    "place_of_adams_eps": _place_of_adams_eps,
    "one_bias_in_lstm": _one_bias_in_lstm,
    "double_rounding_before_bias": _double_rounding_before_bias,
}
"""By name of ``mpcore.capabilities.differences.DIFFERENCES``."""
