"""The five architectures of ``unseen`` in Keras 3 over TensorFlow; channels are last."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
import zoo_tensorflow
from keras import layers, ops
from unseen import HIDDEN, LATENT, PATCHES
from zoo import CLASSES, EPS, FEATURES, WIDTH
from zoo_tensorflow import _entry, batch_norm, classify, layer_norm


class MixerBlock(layers.Layer):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.norm1 = layer_norm("norm1")
        self.across = layers.Dense(HIDDEN, name="across")
        self.gelu1 = layers.Activation("gelu", name="gelu1")
        self.back = layers.Dense(PATCHES, name="back")
        self.norm2 = layer_norm("norm2")
        self.up = layers.Dense(HIDDEN, name="up")
        self.gelu2 = layers.Activation("gelu", name="gelu2")
        self.down = layers.Dense(WIDTH, name="down")

    def call(self, x):
        y = ops.transpose(self.norm1(x), (0, 2, 1))
        x = x + ops.transpose(self.back(self.gelu1(self.across(y))), (0, 2, 1))
        return x + self.down(self.gelu2(self.up(self.norm2(x))))


class Mixer(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.patches = layers.Conv2D(WIDTH, 4, strides=4, name="patches")
        self.block1 = MixerBlock(name="block1")
        self.block2 = MixerBlock(name="block2")
        self.norm = layer_norm("norm")
        self.head = layers.Dense(CLASSES, name="head")

    def call(self, x):
        x = ops.reshape(self.patches(x), (-1, PATCHES, WIDTH))
        return self.head(ops.mean(self.norm(self.block2(self.block1(x))), 1))


class Vae(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.enter = layers.Dense(HIDDEN, name="enter")
        self.relu1 = layers.ReLU(name="relu1")
        self.mean = layers.Dense(LATENT, name="mean")
        self.spread = layers.Dense(LATENT, name="spread")
        self.leave = layers.Dense(HIDDEN, name="leave")
        self.relu2 = layers.ReLU(name="relu2")
        self.out = layers.Dense(FEATURES, name="out")

    def call(self, inputs):
        x, noise = inputs
        hidden = self.relu1(self.enter(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        z = mean + ops.cast(noise, mean.dtype) * ops.exp(0.5 * spread)
        return self.out(self.relu2(self.leave(z))), mean, spread


def evidence_bound(model, *, weight=1.0, kl=lambda x: ops.mean(ops.sum(x, -1))):
    def loss(x, noise):
        made, mean, spread = (ops.cast(v, "float32") for v in model((x, noise), training=True))
        apart = 0.5 * (ops.square(mean) + ops.exp(spread) - 1 - spread)
        return ops.mean(ops.square(made - x)) + weight * kl(apart)

    return loss


class ConvGru(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = layers.Conv1D(WIDTH, 5, padding="same", name="conv1")
        self.norm1 = batch_norm("norm1")
        self.relu1 = layers.ReLU(name="relu1")
        self.conv2 = layers.Conv1D(WIDTH, 3, strides=2, name="conv2")
        self.relu2 = layers.ReLU(name="relu2")
        self.rnn = layers.GRU(WIDTH, name="rnn")
        self.head = layers.Dense(CLASSES, name="head")

    def call(self, x, training=None):
        x = self.relu1(self.norm1(self.conv1(x), training=training))
        return self.head(self.rnn(self.relu2(self.conv2(x))))


def conv_norm(filters: int, name: str) -> keras.Model:
    conv = layers.Conv2D(filters, 3, padding="same", name="conv")
    return keras.Sequential([conv, batch_norm("norm"), layers.ReLU(name="relu")], name=name)


class BnUNet(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = conv_norm(4, "down1")
        self.pool1 = layers.MaxPooling2D(2, name="pool1")
        self.down2 = conv_norm(8, "down2")
        self.pool2 = layers.MaxPooling2D(2, name="pool2")
        self.bottom = conv_norm(8, "bottom")
        self.up2 = layers.Conv2DTranspose(8, 2, strides=2, name="up2")
        self.merge2 = conv_norm(8, "merge2")
        self.up1 = layers.Conv2DTranspose(4, 2, strides=2, name="up1")
        self.merge1 = conv_norm(4, "merge1")
        self.head = layers.Conv2D(CLASSES, 1, name="head")

    def call(self, x, training=None):
        first = self.down1(x, training=training)
        second = self.down2(self.pool1(first), training=training)
        x = self.up2(self.bottom(self.pool2(second), training=training))
        x = self.up1(self.merge2(ops.concatenate([second, x], -1), training=training))
        return self.head(self.merge1(ops.concatenate([first, x], -1), training=training))


class Detect(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(8, "stem")
        self.conv = layers.Conv2D(8, 3, strides=2, name="conv")
        self.leaky = layers.LeakyReLU(0.1, name="leaky")
        self.pool = layers.GlobalAveragePooling2D(name="pool")
        self.scores = layers.Dense(CLASSES, name="scores")
        self.hidden = layers.Dense(HIDDEN, name="hidden")
        self.silu = layers.Activation("silu", name="silu")
        self.box = layers.Dense(4, name="box")

    def call(self, x, training=None):
        x = ops.pad(self.stem(x, training=training), ((0, 0), (1, 1), (1, 1), (0, 0)))
        x = self.pool(self.leaky(self.conv(x)))
        return self.scores(x), self.box(self.silu(self.hidden(x)))


def two_losses(model, *, weight=2.0):
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(x, y, boxes):
        scores, box = (ops.cast(v, "float32") for v in model(x, training=True))
        away = ops.abs(box - boxes)
        near = ops.mean(ops.where(away < 1, 0.5 * ops.square(away), away - 0.5))
        return entropy(y, scores) + weight * near

    return loss


def built(name, make, loss, *, last=False, several=False):
    """Return an entry: ``last`` for inputs with their channels last, ``several`` inputs."""
    plain = _entry(name, make, loss)

    def batch(rng):
        found = plain.batch(rng)
        return (np.moveaxis(found[0], 1, -1).copy(), *found[1:]) if last else found

    def build():
        keras.utils.set_random_seed(0)
        model = make()
        given = batch(np.random.default_rng(0))
        model(tuple(map(tf.constant, given[:2])) if several else given[0], training=False)
        return model

    return type(plain)(**{**vars(plain), "batch": batch, "build": build})


assert EPS == 1e-5  # of every normalisation above, as in zoo_tensorflow

MODELS = {
    "mixer": built("mixer", Mixer, classify),
    "vae": built("vae", Vae, evidence_bound, several=True),
    "convgru": built("convgru", ConvGru, classify, last=True),
    "bnunet": built("bnunet", BnUNet, classify),
    "detect": built("detect", Detect, two_losses),
}
ENTRIES = {**zoo_tensorflow.ZOO, **MODELS}
