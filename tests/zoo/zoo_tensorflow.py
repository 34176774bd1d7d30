"""The ten architectures in Keras 3 over TensorFlow; images are channels last.

Where Keras pads a strided convolution unevenly, the padding is given as in the others.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf
import zoo
from keras import layers, ops
from zoo import CLASSES, EPS, FEATURES, HEADS, LENGTH, VOCABULARY, WIDTH

import mpcore as mp
from mpcore_tensorflow.layers import walk


def batch_norm(name: str) -> layers.Layer:
    return layers.BatchNormalization(epsilon=EPS, momentum=0.9, name=name)


def layer_norm(name: str) -> layers.Layer:
    return layers.LayerNormalization(epsilon=EPS, name=name)


def mlp() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((FEATURES,)),
            layers.Dense(32, name="fc1"),
            layers.ReLU(name="relu1"),
            layers.Dense(32, name="fc2"),
            layers.ReLU(name="relu2"),
            layers.Dense(CLASSES, name="head"),
        ]
    )


def cnn() -> keras.Model:
    image = x = layers.Input((16, 16, 3))
    for number, filters in enumerate((4, 8), start=1):
        x = layers.Conv2D(filters, 3, padding="same", name=f"conv{number}")(x)
        x = layers.ReLU(name=f"relu{number}")(x)
        x = layers.MaxPooling2D(2, name=f"pool{number}")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dropout(0.1, name="dropout")(x)
    return keras.Model(image, layers.Dense(CLASSES, name="head")(x))


def conv_norm(filters: int, kernel: int, stride: int = 1) -> list[layers.Layer]:
    conv = layers.Conv2D(
        filters, kernel, stride, padding="same", use_bias=False, name="conv"
    )  # stride 2 only with kernel 1, where nothing is padded
    return [conv, batch_norm("norm")]


class ResidualBlock(layers.Layer):
    def __init__(self, inside: int, outside: int, stride: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.conv1 = layers.Conv2D(outside, 3, stride, use_bias=False, name="conv1")
        self.norm1 = batch_norm("norm1")
        self.relu = layers.ReLU(name="relu")
        self.conv2 = layers.Conv2D(outside, 3, padding="same", use_bias=False, name="conv2")
        self.norm2 = batch_norm("norm2")
        self.shortcut = (
            layers.Identity(name="shortcut")
            if stride == 1 and inside == outside
            else keras.Sequential(conv_norm(outside, 1, stride), name="shortcut")
        )

    def call(self, x, training=None):
        padded = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        y = self.relu(self.norm1(self.conv1(padded), training=training))
        y = self.norm2(self.conv2(y), training=training)
        return self.relu(y + self.shortcut(x, training=training))


class ResNet(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.stem = keras.Sequential([*conv_norm(4, 3), layers.ReLU(name="relu")], name="stem")
        self.block1 = ResidualBlock(4, 4, 1, name="block1")
        self.block2 = ResidualBlock(4, 8, 2, name="block2")
        self.pool = layers.GlobalAveragePooling2D(name="pool")
        self.head = layers.Dense(CLASSES, name="head")

    def call(self, x, training=None):
        x = self.stem(x, training=training)
        x = self.block2(self.block1(x, training=training), training=training)
        return self.head(self.pool(x))


def separable() -> keras.Model:
    def relu6():
        return layers.ReLU(max_value=6.0, name="relu")

    depthwise = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="conv")
    return keras.Sequential(
        [
            layers.Input((16, 16, 3)),
            keras.Sequential([*conv_norm(4, 3), relu6()], name="stem"),
            keras.Sequential([depthwise, batch_norm("norm"), relu6()], name="depthwise"),
            keras.Sequential([*conv_norm(8, 1), relu6()], name="pointwise"),
            layers.GlobalAveragePooling2D(name="pool"),
            layers.Dense(CLASSES, name="head"),
        ]
    )


def conv_group_norm(filters: int, name: str) -> keras.Model:
    return keras.Sequential(
        [
            layers.Conv2D(filters, 3, padding="same", name="conv"),
            layers.GroupNormalization(2, epsilon=EPS, name="norm"),
            layers.ReLU(name="relu"),
        ],
        name=name,
    )


class UNet(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.down = conv_group_norm(4, "down")
        self.pool = layers.MaxPooling2D(2, name="pool")
        self.bottom = conv_group_norm(8, "bottom")
        self.up = layers.Conv2DTranspose(4, 2, strides=2, name="up")
        self.merge = conv_group_norm(4, "merge")
        self.head = layers.Conv2D(CLASSES, 1, name="head")

    def call(self, x):
        skip = self.down(x)
        x = self.up(self.bottom(self.pool(skip)))
        return self.head(self.merge(ops.concatenate([skip, x], axis=-1)))


def recurrent(rnn: type[layers.Layer]) -> keras.Model:
    tokens = layers.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH, name="embed")(tokens)
    x = rnn(WIDTH, name="rnn")(x)
    return keras.Model(tokens, layers.Dense(CLASSES, name="head")(x))


class EncoderLayer(layers.Layer):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name="attention")
        self.norm1 = layer_norm("norm1")
        self.up = layers.Dense(2 * WIDTH, name="up")
        self.gelu = layers.Activation("gelu", name="gelu")  # the exact one
        self.down = layers.Dense(WIDTH, name="down")
        self.norm2 = layer_norm("norm2")

    def call(self, x):
        x = self.norm1(x + self.attention(x, x))
        return self.norm2(x + self.down(self.gelu(self.up(x))))


class Encoder(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = layers.Embedding(VOCABULARY, WIDTH, name="tokens")
        self.positions = layers.Embedding(LENGTH, WIDTH, name="positions")
        self.layer1 = EncoderLayer(name="layer1")
        self.layer2 = EncoderLayer(name="layer2")
        self.head = layers.Dense(CLASSES, name="head")

    def call(self, tokens):
        x = self.tokens(tokens) + self.positions(ops.arange(tokens.shape[1]))
        return self.head(ops.mean(self.layer2(self.layer1(x)), axis=1))


def gelu_tanh(x):
    return keras.activations.gelu(x, approximate=True)


class GptBlock(layers.Layer):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.norm1 = layer_norm("norm1")
        self.qkv = layers.Dense(3 * WIDTH, name="qkv")
        self.softmax = layers.Softmax(name="softmax")
        self.proj = layers.Dense(WIDTH, name="proj")
        self.norm2 = layer_norm("norm2")
        self.up = layers.Dense(4 * WIDTH, name="up")
        self.gelu = layers.Activation(gelu_tanh, name="gelu")
        self.down = layers.Dense(WIDTH, name="down")

    def attend(self, x):
        qkv = ops.reshape(self.qkv(x), (-1, LENGTH, 3, HEADS, WIDTH // HEADS))
        q, k, v = ops.unstack(ops.transpose(qkv, (2, 0, 3, 1, 4)), axis=0)
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * (WIDTH // HEADS) ** -0.5
        future = ops.triu(ops.ones((LENGTH, LENGTH), "bool"), k=1)
        scores = ops.where(future, ops.cast(-1e4, scores.dtype), scores)
        weights = ops.cast(self.softmax(scores), v.dtype)
        mixed = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        return self.proj(ops.reshape(mixed, (-1, LENGTH, WIDTH)))

    def call(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class Gpt(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = layers.ReversibleEmbedding(VOCABULARY, WIDTH, name="tokens")
        self.positions = layers.Embedding(LENGTH, WIDTH, name="positions")
        self.block1 = GptBlock(name="block1")
        self.norm = layer_norm("norm")

    def call(self, tokens):
        x = self.tokens(tokens) + self.positions(ops.arange(tokens.shape[1]))
        return self.tokens(self.norm(self.block1(x)), reverse=True)


class Generator(keras.Model):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.fc = layers.Dense(8 * 4 * 4, name="fc")
        self.unflatten = layers.Reshape((8, 4, 4), name="unflatten")
        self.norm1 = batch_norm("norm1")
        self.relu1 = layers.ReLU(name="relu1")
        self.up1 = layers.Conv2DTranspose(
            4, 4, strides=2, padding="same", use_bias=False, name="up1"
        )
        self.norm2 = batch_norm("norm2")
        self.relu2 = layers.ReLU(name="relu2")
        self.up2 = layers.Conv2DTranspose(3, 4, strides=2, padding="same", name="up2")
        self.tanh = layers.Activation("tanh", name="tanh")

    def call(self, z, training=None):
        x = ops.transpose(self.unflatten(self.fc(z)), (0, 2, 3, 1))
        x = self.relu1(self.norm1(x, training=training))
        x = self.relu2(self.norm2(self.up1(x), training=training))
        return self.tanh(self.up2(x))


class Discriminator(keras.Model):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.conv1 = layers.Conv2D(4, 4, 2, padding="same", name="conv1")
        self.leaky1 = layers.LeakyReLU(0.2, name="leaky1")
        self.conv2 = layers.Conv2D(8, 4, 2, padding="same", use_bias=False, name="conv2")
        self.norm = batch_norm("norm")
        self.leaky2 = layers.LeakyReLU(0.2, name="leaky2")
        self.flatten = layers.Flatten(name="flatten")
        self.fc = layers.Dense(1, name="fc")

    def call(self, x, training=None):
        x = self.leaky1(self.conv1(x))
        x = self.leaky2(self.norm(self.conv2(x), training=training))
        return self.fc(self.flatten(x))


class Gan(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.g = Generator(name="g")
        self.d = Discriminator(name="d")

    def call(self, z, training=None):
        return self.d(self.g(z, training=training), training=training)


def classify(model):
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(x, y):
        return cross_entropy(y, model(x, training=True))

    return loss


def classify_weighted(model):
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def loss(tokens, y, weights):
        each = cross_entropy(y, model(tokens, training=True))  # of an example, or of a token
        return ops.mean(each * ops.reshape(weights, (-1, *(1 for _ in y.shape[1:]))))

    return loss


def adversarial(model):
    def score(image):
        return ops.cast(model.d(image, training=True), "float32")

    def generator(z, real):
        return ops.mean(ops.softplus(-score(model.g(z, training=True))))

    def discriminator(z, real):
        fake = score(tf.stop_gradient(model.g(z, training=True)))
        return ops.mean(ops.softplus(fake) + ops.softplus(-score(real)))

    return {"g": generator, "d": discriminator}


def _sgd(variables: list[keras.Variable]) -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.SGD(zoo.LEARNING_RATE, momentum=zoo.MOMENTUM)
    optimizer.build(variables)
    return optimizer


def _one(model: keras.Model) -> keras.optimizers.Optimizer:
    return _sgd(model.trainable_variables)


def _two(model: Gan) -> dict[str, keras.optimizers.Optimizer]:
    return {"g": _sgd(model.g.trainable_variables), "d": _sgd(model.d.trainable_variables)}


def _channels_last(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, 1, -1).copy() if array.ndim == 4 else array


def tensors(batch: zoo.Batch) -> tuple[tf.Tensor, ...]:
    return tuple(map(tf.constant, batch))


def forward(model: keras.Model, x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    output = model(x, training=False).numpy()
    return np.moveaxis(output, -1, 1) if output.ndim == 4 else output


def seen(model: keras.Model, amp: mp.Amp, x: np.ndarray, *_: np.ndarray):
    found, originals = {}, []
    for entry in walk(model):
        original = entry.layer.call

        @functools.wraps(original)
        def call(*args, original=original, path=entry.path, **kwargs):
            outputs = original(*args, **kwargs)
            found[path] = first_float(args), first_float(outputs)
            return outputs

        originals.append((entry.layer, original))
        vars(entry.layer)["call"] = call  # past the guard: a look, no change
    model(x, training=True)
    for layer, original in originals:
        vars(layer)["call"] = original
    return found


def still(model: keras.Model) -> None:
    model.get_layer("dropout").rate = 0.0


def first_float(value) -> str:
    names = (keras.backend.standardize_dtype(x.dtype) for x in keras.tree.flatten(value))
    return next(filter(keras.backend.is_float_dtype, names), "")


def _entry(name, make, loss=classify, optimizer=_one):
    def batch(rng):
        return tuple(_channels_last(array) for array in zoo.BATCHES[name](rng))

    def build():
        keras.utils.set_random_seed(0)
        model = make()
        if not model.built:
            model(batch(np.random.default_rng(0))[0], training=False)
        return model

    return zoo.Entry(build, batch, tensors, loss, optimizer, forward, seen, still)


ZOO = {
    "mlp": _entry("mlp", mlp),
    "cnn": _entry("cnn", cnn),
    "resnet": _entry("resnet", ResNet),
    "separable": _entry("separable", separable),
    "unet": _entry("unet", UNet),
    "lstm": _entry("lstm", lambda: recurrent(layers.LSTM), classify_weighted),
    "gru": _entry("gru", lambda: recurrent(layers.GRU), classify_weighted),
    "encoder": _entry("encoder", Encoder, classify_weighted),
    "gpt": _entry("gpt", Gpt, classify_weighted),
    "gan": _entry("gan", Gan, adversarial, _two),
}
