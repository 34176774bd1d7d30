"""More mistakes of ports to Keras, written before any rule was looked at, with ``fresh``."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from port_faults_tensorflow import OPTIMIZER, PRODUCTS, UNCLEAR, _of, _pick
from port_faults_tensorflow import optimizer as plain_optimizer

DENSE = (layers.Dense,)
CAST = ("missing cast", "dtype rule", "op list", "reduction dtype", *UNCLEAR)


def optimizer(own, **changes):
    if changes.pop("adam", False):
        made = keras.optimizers.Adam(own.optimizer["rate"])
        made.build(own.model.trainable_variables)
        return made
    return plain_optimizer(own, **changes)


def _around(layer, change):
    """Change what a layer is given or hands on."""
    plain = layer.call
    layer.call = lambda x, *args, **more: change(plain, x, *args, **more)


def dilated(own, rng):
    found = {p: m for p, m in _of(own, layers.Conv2D).items() if m.padding == "same"}
    found = {p: m for p, m in found.items() if m.kernel_size == (3, 3) and m.strides == (1, 1)}
    path, layer = _pick(rng, found)
    if layer is None:
        return None
    layer.dilation_rate = (2, 2)
    return {}, (path,), ("other setting", "padding")


def groups(own, rng):
    path, layer = _pick(rng, _of(own, layers.GroupNormalization))
    if layer is None:
        return None
    layer.groups = 4
    return {}, (path,), ("other setting",)


def flipped(own, rng):
    if len(own.batch[0].shape) != 4:
        return None
    own.batch = (own.batch[0][:, :, ::-1], *own.batch[1:])
    return {}, ("batch[0]",), ("data order", "layout", "other setting")


def standardised(own, rng):
    if own.batch[0].dtype.is_integer:
        return None
    own.batch = ((own.batch[0] - 0.1) / 0.9, *own.batch[1:])
    return {}, ("batch[0]",), ("data order", "other setting")


def stopped(own, rng):
    path, layer = _pick(rng, _of(own, *PRODUCTS))
    if layer is None:
        return None
    _around(layer, lambda call, x, *a, **k: tf.stop_gradient(call(x, *a, **k)))
    return {}, (path,), ("other setting", "unknown")


@tf.custom_gradient
def _halving(x):
    return tf.identity(x), lambda grad: grad * tf.cast(0.5, grad.dtype)


def halved(own, rng):
    path, layer = _pick(rng, _of(own, *PRODUCTS))
    if layer is None:
        return None
    _around(layer, lambda call, x, *a, **k: _halving(call(x, *a, **k)))
    return {}, (path,), ("other setting", "unknown")


def rounded_weights(own, rng):
    path, layer = _pick(rng, _of(own, *PRODUCTS))
    if layer is None:
        return None
    layer.kernel.assign(tf.cast(tf.cast(layer.kernel, tf.bfloat16), tf.float32))
    return {}, (path,), ("initialisation",)


def rounded_inputs(own, rng):
    if own.batch[0].dtype.is_integer:
        return None
    own.batch = (tf.cast(tf.cast(own.batch[0], tf.float16), tf.float32), *own.batch[1:])
    return {}, ("batch[0]",), ("data order", "other setting", "missing cast")


def dropped(own, rng):
    path, layer = _pick(rng, _of(own, *DENSE))
    if layer is None:
        return None
    _around(layer, lambda call, x, *a, **k: tf.nn.dropout(call(x, *a, **k), 0.1))
    return {}, (path,), ("random state", *UNCLEAR)


def low(own, rng):
    path, layer = _pick(rng, _of(own, *PRODUCTS))
    if layer is None:
        return None

    def change(call, x, *a, **k):
        found = tf.cast(call(x, *a, **k), tf.bfloat16)
        return tf.cast(found, x.dtype)

    _around(layer, change)
    return {}, (path,), CAST


def adam(own, rng):
    return {"adam": True}, OPTIMIZER, ("optimizer constants",)


def half_batch(own, rng):
    plain = own.loss
    own.loss = lambda *batch: plain(*(x[: x.shape[0] // 2] for x in batch))
    return {}, ("batch[0]", "(loss)", "batch[1]"), ("data order", "loss reduction", *UNCLEAR)


def reflected(own, rng):
    found = {p: m for p, m in _of(own, layers.Conv2D).items() if m.padding == "same"}
    path, layer = _pick(rng, {p: m for p, m in found.items() if m.kernel_size == (3, 3)})
    if layer is None:
        return None
    layer.padding = "valid"
    ends = ((0, 0), (1, 1), (1, 1), (0, 0))
    _around(layer, lambda call, x, *a, **k: call(tf.pad(x, ends, "REFLECT"), *a, **k))
    return {}, (path,), ("padding", *UNCLEAR)


def moved_bias(own, rng):
    """Start a bias elsewhere."""
    found = {p: m for p, m in _of(own, *PRODUCTS).items() if m.use_bias}
    path, layer = _pick(rng, found)
    if layer is None:
        return None
    layer.bias.assign(layer.bias + 0.3 * np.sign(rng.normal()))
    return {}, (path,), ("initialisation",)


FAMILIES = {
    plant.__name__: plant
    for plant in (
        *(dilated, groups, flipped, standardised, stopped, halved, rounded_weights),
        *(rounded_inputs, dropped, low, adam, half_batch, reflected, moved_bias),
    )
}
