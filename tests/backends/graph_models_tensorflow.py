"""Small Keras models for the tests of by="graph"; each returns (model, arguments)."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

L = keras.layers


def _numbers(*shape: int) -> Any:
    return np.random.default_rng(0).random(shape, np.float32)


def functional() -> Any:
    """Two inputs, two outputs, a layer that is called twice, a Sequential inside."""
    a, b = keras.Input((8,)), keras.Input((4,))
    shared = L.Dense(8)
    h = L.Concatenate()([keras.Sequential([L.Dense(8, activation="relu")])(a), b])
    h = L.BatchNormalization()(shared(shared(L.Dense(8)(h))))
    outputs = [L.Dense(2)(h), L.Dense(5, activation="softmax")(h)]
    return keras.Model([a, b], outputs), ([_numbers(4, 8), _numbers(4, 4)],)


class Raw(keras.Model):  # type: ignore[misc]  # keras is not followed
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = L.Dense(8), L.BatchNormalization()
        self.w = self.add_weight(shape=(8, 8), name="w")

    def call(self, x: Any, training: bool = False) -> Any:
        h = tf.nn.silu(tf.matmul(self.dense(x), self.w))
        h = self.norm(h, training=training)
        seen = tf.linalg.band_part(tf.ones((4, 4)), -1, 0)
        scores = tf.matmul(h, h, transpose_b=True) + (1.0 - seen) * -1e9
        return tf.matmul(tf.nn.softmax(scores), h)


def raw() -> Any:
    """Subclassed, operations of TensorFlow alone between its layers, a masked softmax."""
    model, x = Raw(), _numbers(4, 8)
    model(x)
    return model, (x,)


class Adds(keras.Model):  # type: ignore[misc]  # keras is not followed
    def __init__(self) -> None:
        super().__init__()
        self.dense = L.Dense(8, activity_regularizer="l2")
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, x: Any) -> Any:
        h = self.dense(x)
        self.add_loss(keras.ops.mean(h))
        self.count.assign_add(1.0)
        return h * self.count


def adds() -> Any:
    """It adds losses, and counts its calls."""
    model, x = Adds(), _numbers(4, 8)
    model(x)
    return model, (x,)


def masked() -> Any:
    """A mask goes from the embedding to the output."""
    i = keras.Input((6,), dtype="int32")
    h = L.Embedding(20, 8, mask_zero=True)(i)
    return keras.Model(i, L.Dense(3)(L.Dropout(0.3)(h))), (np.arange(24).reshape(4, 6) % 5,)


class Branches(keras.Model):  # type: ignore[misc]  # keras is not followed
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = L.Dense(8), L.Dense(8)

    def call(self, x: Any) -> Any:
        x = self.b(self.a(x))
        h = keras.ops.cond(
            keras.ops.mean(x) > 0, lambda: self.a(x), lambda: keras.ops.relu(self.b(x))
        )
        return keras.ops.while_loop(
            lambda i, h: i < 3, lambda i, h: (i + 1, keras.ops.tanh(self.a(h))), (0, h)
        )[1]


def branches() -> Any:
    """A branch and a loop that tensors decide."""
    model, x = Branches(), _numbers(4, 8)
    model(x)
    return model, (x,)


def recurrent() -> Any:
    """A loop over time."""
    layers = [keras.Input((5, 4)), L.GRU(8), L.Dense(3)]
    return keras.Sequential(layers), (_numbers(4, 5, 4),)


class Attends(keras.Model):  # type: ignore[misc]  # keras is not followed
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = L.Embedding(20, 16), L.LayerNormalization()
        self.attend, self.head = L.MultiHeadAttention(2, 8, dropout=0.1), L.Dense(20)

    def call(self, x: Any, training: bool = False) -> Any:
        h = self.embed(x)
        n = self.norm(h)
        return self.head(h + self.attend(n, n, use_causal_mask=True, training=training))


def attends() -> Any:
    """Attention, dropout: a subclassed model of Keras' layers."""
    model, x = Attends(), np.arange(24).reshape(4, 6) % 20
    model(x)
    return model, (x,)


MODELS = {
    "functional": functional,
    "raw": raw,
    "adds": adds,
    "masked": masked,
    "branches": branches,
    "recurrent": recurrent,
    "attends": attends,
}
