"""The three architectures of ``recent`` in Keras 3 over TensorFlow; channels are last."""

from __future__ import annotations

import keras
import novel_tensorflow
import tensorflow as tf
from keras import layers, ops
from recent import LATENTS, wrong
from unseen import HIDDEN
from unseen_tensorflow import built
from zoo import CLASSES, HEADS, WIDTH
from zoo_tensorflow import batch_norm, classify, layer_norm


class Gated(layers.Layer):
    def __init__(self, wide: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.wide = wide
        self.filter = layers.Conv1D(WIDTH, 2, dilation_rate=wide, name="filter")
        self.gate = layers.Conv1D(WIDTH, 2, dilation_rate=wide, name="gate")
        self.tanh = layers.Activation("tanh", name="tanh")
        self.sigmoid = layers.Activation("sigmoid", name="sigmoid")
        self.skip = layers.Conv1D(WIDTH, 1, name="skip")
        self.back = layers.Conv1D(WIDTH, 1, name="back")

    def call(self, x):
        ends = (0, self.wide) if self.wide == 2 and wrong("future seen") else (self.wide, 0)
        near = ops.pad(x, ((0, 0), ends, (0, 0)))
        told, gate = self.filter(near), self.gate(near)
        if self.wide == 1 and wrong("gate and filter swapped"):
            told, gate = gate, told
        z = self.tanh(told) * self.sigmoid(gate)
        found = x + self.back(z)
        if self.wide == 1 and wrong("residual scaled"):
            found = found * 0.5**0.5
        return found, self.skip(z)


class Wave(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.enter = layers.Conv1D(WIDTH, 1, name="enter")
        self.block1, self.block2 = Gated(1, name="block1"), Gated(2, name="block2")
        self.relu = layers.ReLU(name="relu")
        self.out = layers.Conv1D(CLASSES, 1, name="out")

    def call(self, x):
        x, first = self.block1(self.enter(x))
        _, second = self.block2(x)
        return self.out(self.relu(second if wrong("last skip alone") else first + second))


def each_step(model):
    def loss(x, y):
        logits = ops.cast(model(x, training=True), "float32")
        smooth = 0.1 if wrong("labels smoothed") else 0.0
        target = ops.one_hot(y, CLASSES) * (1 - smooth) + smooth / CLASSES
        return ops.mean(keras.losses.categorical_crossentropy(target, logits, from_logits=True))

    return loss


class Look(layers.Layer):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.norm = layer_norm("norm")
        self.query = layers.Dense(WIDTH, name="query")
        self.key = layers.Dense(WIDTH, name="key")
        self.value = layers.Dense(WIDTH, name="value")
        self.share = layers.Softmax(name="share")
        self.out = layers.Dense(WIDTH, name="out")

    def call(self, latents, x):
        near = self.norm(x)
        heads = 1 if wrong("one head") else HEADS

        def split(value):
            shape = (*value.shape[:2], heads, WIDTH // heads)
            return ops.transpose(ops.reshape(value, shape), (0, 2, 1, 3))

        query = split(self.query(latents))
        key = split(self.key(x if wrong("keys without norm") else near))
        value = split(self.value(near))
        size = WIDTH if wrong("scaled by all heads") else WIDTH // heads
        share = self.share(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) / size**0.5)
        made = ops.transpose(ops.matmul(ops.cast(share, value.dtype), value), (0, 2, 1, 3))
        return self.out(ops.reshape(made, (*made.shape[:2], WIDTH)))


class Perceiver(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.latents = layers.Embedding(LATENTS, WIDTH, name="latents")
        self.look = Look(name="look")
        self.norm2 = layer_norm("norm2")
        self.up = layers.Dense(HIDDEN, name="up")
        self.gelu = layers.Activation("gelu", name="gelu")
        self.down = layers.Dense(WIDTH, name="down")
        self.head = layers.Dense(CLASSES, name="head")

    def call(self, x):
        numbers = ops.broadcast_to(ops.arange(LATENTS), (x.shape[0], LATENTS))
        latents = self.latents(numbers)
        seen = self.look(latents, x)
        latents = seen if wrong("latents not added") else latents + seen
        latents = latents + self.down(self.gelu(self.up(self.norm2(latents))))
        alone = wrong("first latent alone")
        return self.head(latents[:, 0] if alone else ops.mean(latents, 1))


class Excite(layers.Layer):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.fc1 = layers.Dense(4, name="fc1")
        self.relu = layers.ReLU(name="relu")
        self.fc2 = layers.Dense(16, name="fc2")
        kind = "sigmoid" if wrong("smooth gate") else "hard_sigmoid"
        self.gate = layers.Activation(kind, name="gate")

    def call(self, x):
        squeezed = ops.max(x, (1, 2)) if wrong("largest squeezed") else ops.mean(x, (1, 2))
        return x * self.gate(self.fc2(self.relu(self.fc1(squeezed))))[:, None, None]


class Inverted(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.stem = layers.Conv2D(8, 3, 2, use_bias=False, name="stem")
        self.norm = batch_norm("norm")
        self.swish = layers.Activation("hard_silu", name="swish")
        self.expand = layers.Conv2D(16, 1, use_bias=False, name="expand")
        self.norm1 = batch_norm("norm1")
        self.relu1 = layers.ReLU(6.0, name="relu1")
        self.depth = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="depth")
        self.norm2 = batch_norm("norm2")
        self.relu2 = layers.ReLU(6.0, name="relu2")
        self.excite = Excite(name="excite")
        self.narrow = layers.Conv2D(8, 1, use_bias=False, name="narrow")
        self.norm3 = batch_norm("norm3")
        self.head = layers.Dense(CLASSES, name="head")

    def call(self, x, training=None):
        x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        x = self.swish(self.norm(self.stem(x), training=training))
        y = self.relu1(self.norm1(self.expand(x), training=training))
        y = self.relu2(self.norm2(self.depth(y), training=training))
        y = self.narrow(self.excite(y))
        if wrong("residual before the norm"):
            x = self.norm3(x + y, training=training)
        else:
            x = x + self.norm3(y, training=training)
        return self.head(ops.mean(x, (1, 2)))


def mixed(model):
    def loss(x, first, second, share):
        logits = ops.cast(model(x, training=True), "float32")
        of = keras.losses.sparse_categorical_crossentropy
        each = [of(y, logits, from_logits=True) for y in (first, second)]
        if wrong("mixed the other way"):
            each = each[::-1]
        return ops.mean(share * each[0] + (1 - share) * each[1])

    return loss


class _Signs(keras.optimizers.SGD):
    def update_step(self, grad, variable, learning_rate):
        super().update_step(tf.sign(grad), variable, learning_rate)


def optimizer(own):
    kind = _Signs if wrong("signs of gradients") else keras.optimizers.SGD
    made = kind(own.optimizer["rate"], own.optimizer["momentum"])
    made.build(own.model.trainable_variables)
    return made


MODELS = {
    "wave": built("wave", Wave, each_step, last=True),
    "perceiver": built("perceiver", Perceiver, classify),
    "inverted": built("inverted", Inverted, mixed),
}
ENTRIES = {**novel_tensorflow.ENTRIES, **MODELS}
