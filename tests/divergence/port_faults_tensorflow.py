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
    layer.call = lambda x: plain(x) * 1.1
    return {}, (path,), ("other setting",)


FAMILIES = {
    plant.__name__: plant
    for plant in (
        *(eps, momentum, activation, turned, mirrored, initialised, scaled_loss, shifted),
        *(reordered, rate, less_momentum, nesterov, decayed, frozen, scaled),
    )
}
