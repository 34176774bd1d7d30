"""Mistakes of ports to Keras, one function each: (own, rng) -> (constants, places, kinds)."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from mpcore_tensorflow.layers import walk

OPTIMIZER = ("(optimizer)",)


def optimizer(own, **changes):
    constants = {**own.optimizer, **changes}
    made = keras.optimizers.SGD(constants.pop("rate"), **constants)
    made.build(own.model.trainable_variables)
    return made


def _of(own, *kinds):
    return {e.path: e.layer for e in walk(own.model) if type(e.layer) in kinds}


def _pick(rng, found):
    paths = list(found)
    if not paths:
        return "", None
    path = paths[rng.integers(len(paths))]
    return path, found[path]


NORMS = (layers.BatchNormalization, layers.LayerNormalization, layers.GroupNormalization)
BENT = (layers.ReLU, layers.LeakyReLU, layers.Activation)
PRODUCTS = (layers.Dense, layers.Conv2D, layers.Conv1D)


def eps(own, rng):
    path, norm = _pick(rng, _of(own, *NORMS))
    if norm is None:
        return None
    norm.epsilon = float(rng.choice([1e-3, 1e-2, 0.1]))
    return {}, (path,), ("eps",)


def momentum(own, rng):
    path, norm = _pick(rng, _of(own, layers.BatchNormalization))
    if norm is None:
        return None
    norm.momentum = float(rng.choice([0.99, 0.1, 0.999]))
    return {}, (path,), ("momentum",)


def activation(own, rng):
    path, layer = _pick(rng, _of(own, *BENT))
    if layer is None:
        return None
    function = [keras.activations.tanh, keras.activations.selu, keras.activations.softplus]
    layer.call = function[rng.integers(3)]
    return {}, (path,), ("activation variant",)


def turned(own, rng):
    found = {p: m for p, m in _of(own, *PRODUCTS).items() if len(set(m.kernel.shape[-2:])) == 1}
    path, layer = _pick(rng, {p: m for p, m in found.items() if m.kernel.shape[-1] > 1})
    if layer is None:
        return None
    layer.kernel.assign(np.swapaxes(layer.kernel.numpy(), -1, -2))
    return {}, (path,), ("layout",)


def mirrored(own, rng):
    found = _of(own, layers.Conv2D)
    path, layer = _pick(rng, {p: m for p, m in found.items() if m.kernel.shape[0] > 1})
    if layer is None:
        return None
    layer.kernel.assign(layer.kernel.numpy()[::-1, ::-1])
    return {}, (path,), ("layout",)


def initialised(own, rng):
    path, layer = _pick(rng, _of(own, *PRODUCTS))
    if layer is None:
        return None
    layer.kernel.assign(0.7 * layer.kernel.numpy() + 0.05)
    return {}, (path,), ("initialisation",)


def scaled_loss(own, rng):
    plain, factor = own.loss, float(rng.choice([8.0, 0.5, 4.0]))
    own.loss = lambda *batch: factor * plain(*batch)
    return {}, ("(loss)",), ("loss reduction",)


def shifted(own, rng):
    if len(own.batch) < 2 or not own.batch[1].dtype.is_integer:
        return None
    own.batch = (own.batch[0], (own.batch[1] + 1) % 5, *own.batch[2:])
    return {}, ("batch[1]",), ("label",)


def reordered(own, rng):
    own.batch = tuple(tf.reverse(x, [0]) for x in own.batch)
    return {}, ("batch[0]",), ("data order",)


def rate(own, rng):
    return {"rate": float(rng.choice([0.01, 0.1]))}, OPTIMIZER, ("optimizer constants",)


def less_momentum(own, rng):
    return {"momentum": float(rng.choice([0.5, 0.0]))}, OPTIMIZER, ("optimizer constants",)


def nesterov(own, rng):
    return {"nesterov": True}, OPTIMIZER, ("optimizer constants",)


def decayed(own, rng):
    return {"weight_decay": 0.2}, OPTIMIZER, ("optimizer constants",)


def frozen(own, rng):
    path, layer = _pick(rng, _of(own, *PRODUCTS))
    if layer is None:
        return None
    layer.trainable = False
    return {}, (path, "(optimizer)"), ("other setting", "optimizer constants", "unknown")


def scaled(own, rng):
    path, layer = _pick(rng, _of(own, layers.Dense))
    if layer is None:
        return None
    plain = layer.call
    layer.call = lambda x, *args, **more: plain(x, *args, **more) * 1.1
    return {}, (path,), ("other setting",)


FAMILIES = {
    plant.__name__: plant
    for plant in (
        *(eps, momentum, activation, turned, mirrored, initialised, scaled_loss, shifted),
        *(reordered, rate, less_momentum, nesterov, decayed, frozen, scaled),
    )
}


# --- newer ones, written before any rule was looked at

CLASSIFIERS = ("mlp", "separable", "resnet", "mixer", "convgru", "experts", "volume")
UNCLEAR = ("other setting", "unknown")


def temperature(own, rng):
    if own.name not in CLASSIFIERS:
        return None
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    own.loss = lambda x, y: entropy(y, own.model(x, training=True) / 2)
    return {}, ("(loss)",), ("loss reduction", *UNCLEAR)


def smoothed(own, rng):
    if own.name not in CLASSIFIERS:
        return None
    entropy = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    own.loss = lambda x, y: entropy(tf.one_hot(y, 5), own.model(x, training=True))
    return {}, ("(loss)",), ("label", *UNCLEAR)


def probabilities(own, rng):
    """Take logits for probabilities."""
    if own.name not in CLASSIFIERS:
        return None
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    own.loss = lambda x, y: entropy(y, tf.nn.softmax(own.model(x, training=True)))
    return {}, ("(loss)",), ("loss reduction", "label", *UNCLEAR)


def colours(own, rng):
    if len(own.batch[0].shape) != 4 or own.batch[0].shape[-1] != 3:
        return None
    own.batch = (own.batch[0][..., ::-1], *own.batch[1:])
    return {}, ("batch[0]",), ("data order", "layout")


def tokens(own, rng):
    if not own.batch[0].dtype.is_integer:
        return None
    own.batch = ((own.batch[0] + 1) % 20, *own.batch[1:])
    return {}, ("batch[0]",), UNCLEAR


def twice(own, rng):
    own.batch = tuple(tf.concat([x[:-1], x[:1]], 0) for x in own.batch)
    return {}, ("batch[0]",), ("data order", *UNCLEAR)


def axis(own, rng):
    path, layer = _pick(rng, _of(own, layers.Softmax))
    if layer is None:
        return None
    layer.axis = 0
    return {}, (path,), ("other setting",)


def alpha(own, rng):
    path, layer = _pick(rng, _of(own, layers.ELU, layers.LeakyReLU))
    if layer is None:
        return None
    slope = 0.6 if isinstance(layer, layers.ELU) else 0.3
    setattr(layer, "alpha" if isinstance(layer, layers.ELU) else "negative_slope", slope)
    return {}, (path,), ("activation variant",)


def exchanged(own, rng):
    shapes = {}
    for path, layer in _of(own, *PRODUCTS).items():
        shapes.setdefault(tuple(layer.kernel.shape), []).append((path, layer))
    found = [same for same in shapes.values() if len(same) > 1]
    if not found:
        return None
    (first, one), (second, other) = found[rng.integers(len(found))][:2]
    kept = one.kernel.numpy()
    one.kernel.assign(other.kernel.numpy())
    other.kernel.assign(kept)
    return {}, (first, second), ("initialisation", "layout")


def statistics(own, rng):
    """Run a norm as in inference, as a frozen one does in Keras."""
    path, norm = _pick(rng, _of(own, layers.BatchNormalization))
    if norm is None:
        return None
    norm.trainable = False
    return {}, (path,), UNCLEAR


def no_bias(own, rng):
    path, layer = _pick(rng, {p: m for p, m in _of(own, *PRODUCTS).items() if m.use_bias})
    if layer is None:
        return None
    layer.bias.assign(0 * layer.bias)
    return {}, (path,), ("initialisation",)


def pooled(own, rng):
    path, layer = _pick(rng, _of(own, layers.MaxPooling2D))
    if layer is None:
        return None
    layer.call = layers.AveragePooling2D(layer.pool_size).call
    return {}, (path,), UNCLEAR


def clipped(own, rng):
    return {"global_clipnorm": 0.05}, OPTIMIZER, ("clipping",)


def scheduled(own, rng):
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.05, 0.03, 0.01])
    return {"rate": rates}, OPTIMIZER, ("schedule",)


NEWER = {
    plant.__name__: plant
    for plant in (
        *(temperature, smoothed, probabilities, colours, tokens, twice, axis, alpha),
        *(exchanged, statistics, no_bias, pooled, clipped, scheduled),
    )
}


# --- what loses nothing in the training loss of a few steps


def slow_statistics(own, rng):
    path, norm = _pick(rng, _of(own, layers.BatchNormalization))
    if norm is None:
        return None
    norm.momentum = 0.999
    return {}, (path,), ("momentum",)


def still_biases(own, rng):
    held = [e.layer for e in walk(own.model) if getattr(e.layer, "bias", None) is not None]
    for layer in held:
        layer.bias.trainable = False
    return ({}, OPTIMIZER, ("other setting",)) if len(held) > 1 else None


@tf.custom_gradient
def _flushing(weight):
    def back(grad):
        return tf.where(tf.abs(grad) > 0.01 * tf.reduce_max(tf.abs(grad)), grad, 0)

    return tf.identity(weight), back


def flushed(own, rng):
    found = {p: m for p, m in _of(own, layers.Dense).items() if m.kernel.shape[0] > 8}
    path, layer = _pick(rng, found)
    if layer is None:
        return None

    def call(x, *args, **more):
        weight = _flushing(tf.cast(layer.kernel, x.dtype))
        return tf.matmul(x, weight) + tf.cast(layer.bias, x.dtype)

    layer.call = call
    return {}, (path,), ("other setting",)


QUIET = {plant.__name__: plant for plant in (slow_statistics, still_biases, flushed)}
