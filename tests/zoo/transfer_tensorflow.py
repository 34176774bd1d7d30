"""The parts in Keras 3 over TensorFlow; images are channels last."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from transfer import ATTEND, HIDDEN, SHAPES, WIDTH
from zoo import EPS, VOCABULARY


class Attention(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, ATTEND[0] // 2, name="attention")

    def call(self, x):
        query, key, value = tf.split(x, ATTEND, axis=-1)
        return self.attention(query, value, key)


class Tied(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = layers.ReversibleEmbedding(VOCABULARY, WIDTH, name="tokens")
        self.norm = layers.LayerNormalization(epsilon=EPS, name="norm")

    def call(self, x):
        return self.tokens(self.norm(self.tokens(x)), reverse=True)


def chain(part, *made):
    shape = SHAPES[part]
    shape = (*shape[2:], shape[1]) if len(shape) == 4 else shape[1:]
    return keras.Sequential([layers.Input(shape), *made])


def both_ways(part, kind):
    made = [layers.Bidirectional(kind(HIDDEN, return_sequences=True)) for _ in range(2)]
    return chain(part, *made)


def one_way(part, kind, **options):
    return chain(part, kind(HIDDEN, return_sequences=True, **options))


PARTS = {
    "lstm": lambda: both_ways("lstm", layers.LSTM),
    "gru": lambda: both_ways("gru", layers.GRU),
    "rnn": lambda: one_way("rnn", layers.SimpleRNN),
    "lstm_without_bias": lambda: one_way("lstm_without_bias", layers.LSTM, use_bias=False),
    "attention": Attention,
    "depthwise": lambda: chain("depthwise", layers.DepthwiseConv2D(3, depth_multiplier=2)),
    "grouped": lambda: chain("grouped", layers.Conv2D(6, 3, groups=2)),
    "transposed": lambda: chain("transposed", layers.Conv2DTranspose(4, 3, strides=2)),
    "separable": lambda: chain("separable", layers.SeparableConv2D(4, 3, depth_multiplier=2)),
    "prelu": lambda: chain("prelu", layers.PReLU(shared_axes=[1, 2])),
    "tied": Tied,
}


def loss(model):
    return lambda x: tf.reduce_mean(tf.square(model(x, training=True)))


def output(model, x):
    found = model(x, training=False).numpy()
    return np.moveaxis(found, -1, 1) if found.ndim == 4 else found
