"""A variational autoencoder: two inputs, three outputs, and a loss written once.

    mpcore compare examples/experiments/vae.py

What it draws at random is an input, so that every framework draws the same.
"""

import numpy as np

from mpcore import Data, OptimizerSpec

optimizer = OptimizerSpec("adamw", learning_rate=1e-3, weight_decay=0.1)
steps, batch = 20, 8
clip_norm, micro_batches = 0.5, 2


def schedule(step: int) -> float:
    return 1e-3 * min(1, (step + 1) / 3)


def data() -> Data:
    rng = np.random.default_rng(0)
    x = rng.random((64, 16)).astype("f4")
    noise = rng.standard_normal((64, 4)).astype("f4")
    return Data((x, noise), x, (x[:8], noise[:8]), x[:8])


def loss(ops, model, x, noise, y):
    logits, mean, logvar = model(x, noise)
    kl = -0.5 * ops.mean(1 + logvar - ops.square(mean) - ops.exp(logvar))
    return ops.binary_cross_entropy(logits, y) + 0.1 * kl


def build_torch():
    import torch
    from torch import nn

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 32)
            self.mean = nn.Linear(32, 4)
            self.logvar = nn.Linear(32, 4)
            self.outer = nn.Linear(4, 32)
            self.out = nn.Linear(32, 16)

        def forward(self, x, noise):
            h = torch.tanh(self.inner(x))
            mean, logvar = self.mean(h), self.logvar(h)
            z = mean + torch.exp(0.5 * logvar) * noise
            return self.out(torch.tanh(self.outer(z))), mean, logvar

    return Vae()


def build_tensorflow():
    import keras
    from keras import layers, ops

    class Vae(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = layers.Dense(32, "tanh")
            self.mean = layers.Dense(4)
            self.logvar = layers.Dense(4)
            self.outer = layers.Dense(32, "tanh")
            self.out = layers.Dense(16)

        def call(self, inputs):
            x, noise = inputs
            h = self.inner(x)
            mean, logvar = self.mean(h), self.logvar(h)
            z = mean + ops.exp(0.5 * logvar) * noise
            return self.out(self.outer(z)), mean, logvar

    return Vae()


def build_mindspore():
    from mindspore import nn, ops

    class Vae(nn.Cell):
        def __init__(self):
            super().__init__()
            self.inner = nn.Dense(16, 32)
            self.mean = nn.Dense(32, 4)
            self.logvar = nn.Dense(32, 4)
            self.outer = nn.Dense(4, 32)
            self.out = nn.Dense(32, 16)

        def construct(self, x, noise):
            h = ops.tanh(self.inner(x))
            mean, logvar = self.mean(h), self.logvar(h)
            z = mean + ops.exp(0.5 * logvar) * noise
            return self.out(ops.tanh(self.outer(z))), mean, logvar

    return Vae()
