"""The three architectures of ``fresh`` in Keras 3 over TensorFlow; channels are last."""

from __future__ import annotations

import keras
import newer_tensorflow
from fresh import QUERIES, TARGETS
from keras import layers, ops
from unseen import HIDDEN
from unseen_tensorflow import built
from zoo import CLASSES, EPS, VOCABULARY, WIDTH
from zoo_tensorflow import batch_norm, classify_weighted


class Tower(layers.Layer):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.conv1 = layers.Conv2D(6, 3, padding="same", name="conv1")
        self.norm1 = batch_norm("norm1")
        self.relu1 = layers.ReLU(name="relu1")
        self.pool1 = layers.MaxPooling2D(2, name="pool1")
        self.conv2 = layers.Conv2D(8, 3, name="conv2")
        self.leaky = layers.LeakyReLU(0.1, name="leaky")
        self.out = layers.Dense(WIDTH, name="out")
        self.tanh = layers.Activation("tanh", name="tanh")

    def call(self, x, training=None):
        x = self.pool1(self.relu1(self.norm1(self.conv1(x), training=training)))
        return self.tanh(self.out(ops.mean(self.leaky(self.conv2(x)), (1, 2))))


class Twins(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.tower = Tower(name="tower")
        self.head = layers.Dense(1, name="head")

    def call(self, inputs, training=None):
        x, other = inputs
        first = self.tower(x, training=training)
        return self.head(ops.abs(first - self.tower(other, training=training)))


def alike(model):
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    return lambda x, other, y: entropy(y, model((x, other), training=True))


class RmsNorm(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x):
        wide = ops.cast(x, "float32")
        wide = wide * ops.rsqrt(ops.mean(ops.square(wide), -1, keepdims=True) + EPS)
        return ops.cast(wide * ops.cast(self.scale, "float32"), x.dtype)


class SwiGlu(layers.Layer):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.gate = layers.Dense(HIDDEN, use_bias=False, name="gate")
        self.silu = layers.Activation("silu", name="silu")
        self.up = layers.Dense(HIDDEN, use_bias=False, name="up")
        self.down = layers.Dense(WIDTH, use_bias=False, name="down")

    def call(self, x):
        return self.down(self.silu(self.gate(x)) * self.up(x))


class Attend(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embed = layers.Embedding(VOCABULARY, WIDTH, name="embed")
        self.norm = RmsNorm(name="norm")
        self.query = layers.Dense(WIDTH, name="query")
        self.key = layers.Dense(WIDTH, name="key")
        self.value = layers.Dense(WIDTH, name="value")
        self.share = layers.Softmax(name="share")
        self.out = layers.Dense(WIDTH, name="out")
        self.norm2 = RmsNorm(name="norm2")
        self.mlp = SwiGlu(name="mlp")
        self.head = layers.Dense(CLASSES, name="head")
        self.asked = self.add_weight(shape=(QUERIES, WIDTH), initializer="zeros", name="asked")

    def call(self, tokens):
        x = self.norm(self.embed(tokens))
        asked = self.query(self.asked)[None]
        scores = ops.matmul(asked, ops.transpose(self.key(x), (0, 2, 1))) / WIDTH**0.5
        share = self.share(scores)
        seen = self.out(ops.matmul(ops.cast(share, x.dtype), self.value(x)))
        return self.head(ops.mean(seen + self.mlp(self.norm2(seen)), 1))


class Squeeze(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.stem = layers.Conv2D(8, 3, 2, name="stem")
        self.norm = layers.GroupNormalization(2, epsilon=EPS, name="norm")
        self.swish = layers.Activation("hard_silu", name="swish")
        self.depth = layers.DepthwiseConv2D(3, padding="same", name="depth")
        self.shrink = layers.Dense(4, name="shrink")
        self.relu = layers.ReLU(name="relu")
        self.grow = layers.Dense(8, name="grow")
        self.gate = layers.Activation("sigmoid", name="gate")
        self.pool = layers.AveragePooling2D(2, name="pool")
        self.mix = layers.Conv2D(6, 1, name="mix")
        self.head = layers.Dense(TARGETS, name="head")

    def call(self, x):
        x = self.depth(self.swish(self.norm(self.stem(x))))
        share = self.gate(self.grow(self.relu(self.shrink(ops.mean(x, (1, 2))))))
        x = self.pool(x * share[:, None, None])
        return self.head(ops.mean(self.mix(x), (1, 2)))


def measured(model):
    huber = keras.losses.Huber()
    return lambda x, y: huber(y, model(x, training=True))


MODELS = {
    "twins": built("twins", Twins, alike, several=True),
    "attend": built("attend", Attend, classify_weighted),
    "squeeze": built("squeeze", Squeeze, measured),
}
ENTRIES = {**newer_tensorflow.ENTRIES, **MODELS}
