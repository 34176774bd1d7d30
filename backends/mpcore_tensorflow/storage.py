"""The storage of a Keras variable, given a new one of another dtype."""

from __future__ import annotations

import keras
import tensorflow as tf

__all__ = ["set_storage"]


def set_storage(
    variable: keras.Variable, value: tf.Tensor, like: tf.Variable | None = None
) -> None:
    """Give a Keras variable new storage: ``value``, in the dtype of ``value``.

    The setters of Keras never change a dtype; the fields are pinned by a test.

    Args:
        variable: the Keras variable.
        value: a tensor.
        like: the ``tf.Variable`` in whose place it comes: optimizers find their slots by it.
    """
    variable._value = tf.Variable(
        value,
        trainable=variable.trainable,
        name=variable.name,
        aggregation=variable._map_aggregation(variable.aggregation),
        synchronization=variable._map_synchronization(variable.synchronization),
    )
    variable._dtype = keras.backend.standardize_dtype(value.dtype)
    if like is not None:
        # A variable with a copy for each replica is known by its first one.
        new = getattr(variable._value, "_primary", variable._value)
        new._unique_id = like._unique_id
