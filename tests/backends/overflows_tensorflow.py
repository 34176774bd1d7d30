"""How Keras' layers are made to overflow."""

from __future__ import annotations

import tensorflow as tf

from mpcore_tensorflow.layers import walk

POLICIES = ["mixed_float16", "model_float16, master=copy"]
SKIPPED: set[tuple[str, str]] = set()
WRAPS_INSIDE = True  # a layer's own call, around which the plan casts
NO_NORMS: tuple[str, ...] = ()
SHOWS_CONSTANTS = True


@tf.custom_gradient
def _scaled(y, number):
    return tf.identity(y), lambda grad: (_times(grad, number), None)


def _times(y, number):
    return tf.cast(tf.cast(y, tf.float32) * number, y.dtype)


def _altered(y, kind, number):
    if isinstance(y, tuple | list):
        return (_altered(y[0], kind, number), *y[1:])
    if kind == "times":
        return _times(y, number)
    if kind == "backward":
        return _scaled(y, number)
    nothing = tf.stop_gradient(y) * 0
    fits = tf.cast(tf.constant(number, tf.float32), y.dtype)
    if kind == "mask":
        return y + nothing * ((nothing + 1) * fits)
    return y + nothing / (nothing + fits)


def wrap(model, path, kind, number):
    layer = next(entry.layer for entry in walk(model) if entry.path == path)
    call = layer.call
    vars(layer)["call"] = lambda *args, **kwargs: _altered(call(*args, **kwargs), kind, number)
