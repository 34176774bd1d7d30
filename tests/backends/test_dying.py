"""A sum of squares that leaves float16 and is divided by: zeros at every loss scale, all finite."""

from __future__ import annotations

import numpy as np
import pytest

import mpcore as mp

FEATURES = 8
RNG = np.random.default_rng(0)
X = (300 * RNG.normal(size=(6, FEATURES))).astype(np.float32)
Y = RNG.normal(size=(6, 2)).astype(np.float32)
EYE = np.eye(FEATURES, dtype=np.float32)


def _torch():
    import torch
    from torch import nn

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(FEATURES))

        def forward(self, x):
            return x * (1 / (x * x).mean(-1, keepdim=True).sqrt()) * self.weight

    model = nn.Sequential()
    model.add_module("enter", nn.Linear(FEATURES, FEATURES))
    model.add_module("norm", Norm())
    model.add_module("head", nn.Linear(FEATURES, 2))
    with torch.no_grad():
        model.enter.weight.copy_(torch.from_numpy(EYE))
    batch = torch.from_numpy(X), torch.from_numpy(Y)
    sgd = torch.optim.SGD(model.parameters(), 0.01)
    return model, sgd, lambda x, y: (model(x).float() - y).square().mean(), batch


def _tensorflow():
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class Norm(layers.Layer):
        def build(self, shape):
            self.weight = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, x):
            return x * (1 / ops.sqrt(ops.mean(x * x, -1, keepdims=True))) * self.weight

    model = keras.Sequential(
        [
            layers.Input((FEATURES,)),
            layers.Dense(FEATURES, kernel_initializer="identity", name="enter"),
            Norm(name="norm"),
            layers.Dense(2, name="head"),
        ]
    )

    def loss(x, y):
        return tf.reduce_mean(tf.square(tf.cast(model(x, training=True), "float32") - y))

    return model, keras.optimizers.SGD(0.01), loss, (tf.constant(X), tf.constant(Y))


def _mindspore():
    import mindspore as ms
    from mindspore import nn, ops

    class Norm(nn.Cell):
        def __init__(self):
            super().__init__()
            self.weight = ms.Parameter(ms.Tensor(np.ones(FEATURES, np.float32)), name="weight")

        def construct(self, x):
            size = ops.sqrt((x * x).mean(axis=-1, keep_dims=True))
            return x * (1 / size) * self.weight

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.enter = nn.Dense(FEATURES, FEATURES, weight_init=ms.Tensor(EYE))
            self.norm = Norm()
            self.head = nn.Dense(FEATURES, 2)

        def construct(self, x):
            return self.head(self.norm(self.enter(x)))

    model = Net().set_train()
    sgd = nn.SGD(model.trainable_params(), 0.01)
    batch = ms.Tensor(X), ms.Tensor(Y)
    return model, sgd, lambda x, y: (model(x).astype(ms.float32) - y).square().mean(), batch


BUILD = {"torch": _torch, "tensorflow": _tensorflow, "mindspore": _mindspore}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.backend(n)) for n in BUILD])
def test_a_norm_that_dies_is_found_in_the_forward_pass(name: str) -> None:
    model, optimizer, loss, batch = BUILD[name]()
    policy = mp.Policy.named("mixed_float16").lower("norm").with_loss_scale(mp.LossScale())
    amp = mp.prepare(model, optimizer, policy)
    result = amp.step(loss, *batch)
    assert not result.stepped
    found = mp.diagnose(amp, result)
    assert (found.phase, found.layer) == ("forward", "norm"), found
    assert "hands on zeros" in str(found)
    assert found.rule is not None
    assert "norm" in found.rule
