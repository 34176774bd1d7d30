"""The five architectures of ``newer`` in Keras 3 over TensorFlow; channels are last."""

from __future__ import annotations

import keras
import unseen_tensorflow
from keras import layers, ops
from newer import EXPERTS
from unseen import HIDDEN
from unseen_tensorflow import built, conv_norm
from zoo import CLASSES, VOCABULARY, WIDTH
from zoo_tensorflow import batch_norm, classify, classify_weighted, layer_norm


class Expert(layers.Layer):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.up = layers.Dense(HIDDEN, name="up")
        self.gelu = layers.Activation("gelu", name="gelu")
        self.down = layers.Dense(WIDTH, name="down")

    def call(self, x):
        return self.down(self.gelu(self.up(x)))


class Experts(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.enter = layers.Dense(WIDTH, name="enter")
        self.gate = layers.Dense(EXPERTS, name="gate")
        self.share = layers.Softmax(name="share")
        self.expert1 = Expert(name="expert1")
        self.expert2 = Expert(name="expert2")
        self.expert3 = Expert(name="expert3")
        self.norm = layer_norm("norm")
        self.head = layers.Dense(CLASSES, name="head")

    def call(self, x):
        x = self.enter(x)
        share = self.share(self.gate(x))
        told = ops.stack([self.expert1(x), self.expert2(x), self.expert3(x)], -1)
        share = ops.cast(ops.expand_dims(share, 1), told.dtype)
        return self.head(self.norm(x + ops.sum(told * share, -1)))


class GraphConv(layers.Layer):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.mix = layers.Dense(WIDTH, name="mix")
        self.norm = layer_norm("norm")
        self.relu = layers.ReLU(name="relu")

    def call(self, x, near):
        x = self.mix(x)
        return self.relu(self.norm(ops.matmul(ops.cast(near, x.dtype), x)))


class Graph(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = GraphConv(name="conv1")
        self.conv2 = GraphConv(name="conv2")
        self.hidden = layers.Dense(HIDDEN, name="hidden")
        self.elu = layers.ELU(name="elu")
        self.head = layers.Dense(CLASSES, name="head")

    def call(self, inputs):
        x, near = inputs
        x = ops.mean(self.conv2(self.conv1(x, near), near), 1)
        return self.head(self.elu(self.hidden(x)))


class TimeMix(layers.Layer):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.norm = layer_norm("norm")
        self.key = layers.Dense(WIDTH, use_bias=False, name="key")
        self.value = layers.Dense(WIDTH, use_bias=False, name="value")
        self.receive = layers.Dense(WIDTH, use_bias=False, name="receive")
        self.gate = layers.Activation("sigmoid", name="gate")
        self.out = layers.Dense(WIDTH, use_bias=False, name="out")

    def build(self, shape):
        self.decay = self.add_weight(shape=(WIDTH,), initializer="zeros", name="decay")
        for part in (self.norm, self.key, self.value, self.receive, self.out):
            part.build(shape)

    def call(self, x):
        x = self.norm(x)
        key = ops.exp(ops.clip(ops.cast(self.key(x), "float32"), -8, 8))
        value = ops.cast(self.value(x), "float32")
        keep = ops.exp(-ops.exp(ops.cast(self.decay, "float32")))
        above = below = ops.zeros_like(value[:, 0])
        told = []
        for at in range(x.shape[1]):
            above = above * keep + key[:, at] * value[:, at]
            below = below * keep + key[:, at]
            told.append(above / below)
        received = self.gate(self.receive(x))
        return self.out(received * ops.cast(ops.stack(told, 1), received.dtype))


class ChannelMix(layers.Layer):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.norm = layer_norm("norm")
        self.up = layers.Dense(HIDDEN, use_bias=False, name="up")
        self.relu = layers.ReLU(name="relu")
        self.down = layers.Dense(WIDTH, use_bias=False, name="down")

    def call(self, x):
        return self.down(ops.square(self.relu(self.up(self.norm(x)))))


class TimeMixer(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embed = layers.Embedding(VOCABULARY, WIDTH, name="embed")
        self.time1, self.channel1 = TimeMix(name="time1"), ChannelMix(name="channel1")
        self.time2, self.channel2 = TimeMix(name="time2"), ChannelMix(name="channel2")
        self.norm = layer_norm("norm")
        self.head = layers.Dense(CLASSES, name="head")

    def call(self, tokens):
        x = self.embed(tokens)
        for part in (self.time1, self.channel1, self.time2, self.channel2):
            x = x + part(x)
        return self.head(ops.mean(self.norm(x), 1))


class AttentionGate(layers.Layer):
    def __init__(self, channels: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.skip = layers.Conv2D(channels, 1, name="skip")
        self.above = layers.Conv2D(channels, 1, name="above")
        self.relu = layers.ReLU(name="relu")
        self.score = layers.Conv2D(1, 1, name="score")
        self.gate = layers.Activation("sigmoid", name="gate")

    def call(self, skip, above):
        score = self.score(self.relu(self.skip(skip) + self.above(above)))
        return skip * self.gate(score)


class AttentionUNet(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = conv_norm(4, "down1")
        self.pool1 = layers.MaxPooling2D(2, name="pool1")
        self.down2 = conv_norm(8, "down2")
        self.pool2 = layers.AveragePooling2D(2, name="pool2")
        self.bottom = conv_norm(8, "bottom")
        self.up2 = layers.Conv2DTranspose(8, 2, strides=2, name="up2")
        self.look2 = AttentionGate(8, name="look2")
        self.merge2 = conv_norm(8, "merge2")
        self.up1 = layers.Conv2DTranspose(4, 2, strides=2, name="up1")
        self.look1 = AttentionGate(4, name="look1")
        self.merge1 = conv_norm(4, "merge1")
        self.head = layers.Conv2D(CLASSES, 1, name="head")

    def call(self, x, training=None):
        first = self.down1(x, training=training)
        second = self.down2(self.pool1(first), training=training)
        x = self.up2(self.bottom(self.pool2(second), training=training))
        x = ops.concatenate([self.look2(second, x), x], -1)
        x = self.up1(self.merge2(x, training=training))
        x = ops.concatenate([self.look1(first, x), x], -1)
        return self.head(self.merge1(x, training=training))


class Volume(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = layers.Conv3D(6, 3, padding="same", name="conv1")
        self.norm1 = batch_norm("norm1")
        self.relu1 = layers.ReLU(name="relu1")
        self.pool1 = layers.MaxPooling3D(2, name="pool1")
        self.conv2 = layers.Conv3D(8, 3, name="conv2")
        self.leaky = layers.LeakyReLU(0.1, name="leaky")
        self.hidden = layers.Dense(HIDDEN, name="hidden")
        self.silu = layers.Activation("silu", name="silu")
        self.head = layers.Dense(CLASSES, name="head")

    def call(self, x, training=None):
        x = self.pool1(self.relu1(self.norm1(self.conv1(x), training=training)))
        x = ops.mean(self.leaky(self.conv2(x)), (1, 2, 3))
        return self.head(self.silu(self.hidden(x)))


def classify_nodes(model):
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return lambda x, near, y: entropy(y, model((x, near), training=True))


MODELS = {
    "experts": built("experts", Experts, classify),
    "graph": built("graph", Graph, classify_nodes, several=True),
    "timemix": built("timemix", TimeMixer, classify_weighted),
    "attunet": built("attunet", AttentionUNet, classify),
    "volume": built("volume", Volume, classify, last=True),
}
ENTRIES = {**unseen_tensorflow.ENTRIES, **MODELS}
