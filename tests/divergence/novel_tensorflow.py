"""The four architectures of ``novel`` in Keras 3 over TensorFlow; channels are last."""

from __future__ import annotations

import fresh_tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from novel import COLOURS, allowed, turns, wrong
from unseen import HIDDEN
from unseen_tensorflow import built
from zoo import CLASSES, EPS, FEATURES, VOCABULARY, WIDTH
from zoo_tensorflow import _entry, batch_norm, gelu_tanh, layer_norm


def turned(x):
    cosine, sine = turns(x.shape[1])
    wide = ops.cast(x, "float32")
    if wrong("rotary pairs side by side"):
        other = ops.reshape(ops.stack([-wide[..., 1::2], wide[..., ::2]], -1), ops.shape(wide))
    else:
        first, second = ops.split(wide, 2, -1)
        other = ops.concatenate([-second, first], -1)
    return ops.cast(wide * cosine + other * sine, x.dtype)


class Attend(layers.Layer):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.query = layers.Dense(WIDTH, use_bias=False, name="query")
        self.key = layers.Dense(WIDTH, use_bias=False, name="key")
        self.value = layers.Dense(WIDTH, use_bias=False, name="value")
        self.share = layers.Softmax(name="share")
        self.out = layers.Dense(WIDTH, name="out")

    def call(self, x):
        query, key = turned(self.query(x)), turned(self.key(x))
        if wrong("query and key swapped"):
            query, key = key, query
        scores = ops.matmul(query, ops.transpose(key, (0, 2, 1))) / WIDTH**0.5
        scores = ops.cast(scores, "float32") + allowed(x.shape[1])
        if wrong("softmax over queries"):
            share = ops.transpose(self.share(ops.transpose(scores, (0, 2, 1))), (0, 2, 1))
        else:
            share = self.share(scores)
        return self.out(ops.matmul(ops.cast(share, x.dtype), self.value(x)))


class Rotary(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embed = layers.Embedding(VOCABULARY, WIDTH, name="embed")
        self.norm1 = layer_norm("norm1")
        self.attend = Attend(name="attend")
        self.norm2 = layer_norm("norm2")
        self.up = layers.Dense(HIDDEN, name="up")
        self.gelu = layers.Activation(gelu_tanh, name="gelu")
        self.down = layers.Dense(WIDTH, name="down")
        self.head = layers.Dense(VOCABULARY, name="head")

    def call(self, tokens):
        x = self.embed(tokens)
        near = self.norm1(x)
        x = (near if wrong("residual behind the norm") else x) + self.attend(near)
        return self.head(x + self.down(self.gelu(self.up(self.norm2(x)))))


def next_token(model):
    def loss(tokens, y, weights):
        logits = ops.cast(model(tokens, training=True), "float32")
        if wrong("last token without loss"):
            logits, y = logits[:, :-1], y[:, :-1]
        each = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        return ops.mean(each * weights[:, None])

    return loss


class Views(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.enter = layers.Dense(HIDDEN, name="enter")
        self.norm = batch_norm("norm")
        self.relu = layers.ReLU(name="relu")
        self.project = layers.Dense(WIDTH, name="project")
        self.hidden = layers.Dense(HIDDEN, name="hidden")
        self.bent = layers.Activation("elu", name="bent")
        self.back = layers.Dense(WIDTH, name="back")

    def call(self, inputs, training=None):
        if wrong("both views in one batch"):
            seen = ops.split(self.seen(ops.concatenate(inputs, 0), training), 2)
        else:
            seen = [self.seen(x, training) for x in inputs]
        return *seen, *(self.back(self.bent(self.hidden(z))) for z in seen)

    def seen(self, x, training):
        training = training and not wrong("norm with running statistics")
        return self.project(self.relu(self.norm(self.enter(x), training=training)))


def alike(model):
    def near(told, target):
        target = target if wrong("target not detached") else ops.stop_gradient(target)
        if not wrong("views not normalised"):
            told, target = ops.normalize(told, axis=-1), ops.normalize(target, axis=-1)
        return -ops.mean(ops.sum(told * target, -1))

    def loss(x, other):
        found = model((x, other), training=True)
        z1, z2, p1, p2 = (ops.cast(value, "float32") for value in found)
        if wrong("one of two losses"):
            return near(p1, z2)
        return 0.5 * (near(p1, z2) + near(p2, z1))

    return loss


class Causal(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = layers.Conv1D(WIDTH, 3, name="conv1")
        self.relu1 = layers.ReLU(name="relu1")
        self.conv2 = layers.Conv1D(WIDTH, 3, dilation_rate=2, name="conv2")
        self.tanh = layers.Activation("tanh", name="tanh")
        self.out = layers.Conv1D(1, 1, name="out")

    def call(self, x):
        x = self.relu1(self.conv1(ops.pad(x, ((0, 0), (2, 0), (0, 0)))))
        left = 4
        if wrong("dilation forgotten"):
            self.conv2.dilation_rate, left = (1,), 2
        ends = (left - 1, 1) if wrong("padding off by one") else (left, 0)
        more = self.tanh(self.conv2(ops.pad(x, ((0, 0), ends, (0, 0)))))
        return ops.squeeze(self.out(x + more), -1)


def masked(model):
    def loss(x, y, valid):
        each = ops.square(ops.cast(model(x, training=True), "float32") - y) * valid
        if wrong("loss summed in bfloat16"):
            low = [ops.sum(ops.cast(v, "bfloat16")) for v in (each, valid)]
            return ops.cast(low[0] / low[1], "float32")
        if wrong("mean over padding too"):
            return ops.mean(each)
        return ops.sum(each) / ops.sum(valid)

    return loss


class Steered(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.stem = layers.Conv2D(8, 3, padding="same", name="stem")
        self.norm = layers.GroupNormalization(2, epsilon=EPS, name="norm")
        self.film = layers.Dense(16, name="film")
        self.relu = layers.ReLU(name="relu")
        self.up = layers.Conv2DTranspose(4, 2, strides=2, name="up")
        self.silu = layers.Activation("silu", name="silu")
        self.head = layers.Conv2D(COLOURS, 3, padding="same", name="head")

    def call(self, inputs):
        x, steer = inputs
        scale, shift = ops.split(self.film(steer)[:, None, None], 2, -1)
        if wrong("scale and shift swapped"):
            scale, shift = shift, scale
        scale = scale if wrong("scale without one") else 1 + scale
        x = self.up(self.relu(self.norm(self.stem(x)) * scale + shift))
        if wrong("picture one pixel aside"):
            x = ops.roll(x, 1, 2)
        return self.head(self.silu(x))


def inside():
    x = given = layers.Input((8, FEATURES))
    x = layers.Dense(HIDDEN, activation="relu", name="fc1")(x)
    x = layers.Dense(WIDTH, activation="tanh", name="fc2")(x)
    return keras.Model(given, layers.Dense(CLASSES, name="head")(ops.mean(x, 1)))


def apart(model):
    def loss(x, steer, y):
        each = ops.abs(ops.cast(model((x, steer), training=True), "float32") - y)
        if wrong("loss summed in bfloat16"):
            return ops.cast(ops.mean(ops.cast(each, "bfloat16")), "float32")
        return ops.mean(ops.sum(each, -1)) if wrong("sum over colours") else ops.mean(each)

    return loss


class _Moved(keras.optimizers.SGD):
    """Changes each gradient before its step."""

    def update_step(self, grad, variable, learning_rate):
        if wrong("gradients centred") and len(grad.shape) > 1:
            axes = tuple(range(len(grad.shape) - 1))
            grad = grad - tf.reduce_mean(grad, axes, keepdims=True)
        elif wrong("rate by norms"):
            grad = grad * (tf.norm(variable) / tf.maximum(tf.norm(grad), 1e-6))
        super().update_step(grad, variable, learning_rate)


def optimizer(own):
    moved = wrong("gradients centred") or wrong("rate by norms")
    kind = _Moved if moved else keras.optimizers.SGD
    made = kind(own.optimizer["rate"], own.optimizer["momentum"])
    made.build(own.model.trainable_variables)
    return made


def turn_kernel(model):
    model.head.kernel.assign(np.swapaxes(model.head.kernel.numpy(), 0, 1))


MODELS = {
    "rotary": built("rotary", Rotary, next_token),
    "views": built("views", Views, alike, several=True),
    "causal": built("causal", Causal, masked, last=True),
    "steered": built("steered", Steered, apart, several=True),
    "inside": _entry("inside", inside),
    "inside_time": _entry("inside_time", inside),
}
ENTRIES = {**fresh_tensorflow.ENTRIES, **MODELS}
