"""A picture and a series in one model: both are turned for Keras, whose channels come last.

    mpcore compare examples/experiments/two_inputs.py

build_torch_functions is the same model written with functions: two models of one framework.

    mpcore compare examples/experiments/two_inputs.py --backend torch,torch_functions
"""

import numpy as np

from mpcore import Data, OptimizerSpec

optimizer = OptimizerSpec("sgd", learning_rate=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
steps, batch, label_smoothing = 20, 8, 0.1


def data() -> Data:
    rng = np.random.default_rng(0)
    picture = rng.standard_normal((64, 3, 8, 8)).astype("f4")
    series = rng.standard_normal((64, 2, 12)).astype("f4")
    y = rng.integers(0, 4, 64).astype("i4")
    few = slice(8)
    return Data((picture, series), y, (picture[few], series[few]), y[few], layout="channels_first")


def build_torch():
    import torch
    from torch import nn

    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.picture = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten())
            self.series = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Flatten())
            self.head = nn.Linear(8 * 36 + 8 * 10, 4)

        def forward(self, picture, series):
            return self.head(torch.cat([self.picture(picture), self.series(series)], 1))

    return TwoInputs()


def build_torch_functions():
    import torch
    from torch import nn
    from torch.nn import functional

    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.picture, self.series = nn.Conv2d(3, 8, 3), nn.Conv1d(2, 8, 3)
            self.head = nn.Linear(8 * 36 + 8 * 10, 4)

        def forward(self, picture, series):
            parts = [functional.relu(self.picture(picture)), functional.relu(self.series(series))]
            return self.head(torch.cat([part.flatten(1) for part in parts], 1))

    return TwoInputs()


def build_tensorflow():
    import keras
    from keras import layers, ops

    class TwoInputs(keras.Model):
        def __init__(self):
            super().__init__()
            self.picture, self.series = layers.Conv2D(8, 3), layers.Conv1D(8, 3)
            self.head = layers.Dense(4)

        def call(self, inputs):
            # Channels first before they are flattened, as the others flatten.
            picture = ops.transpose(ops.relu(self.picture(inputs[0])), (0, 3, 1, 2))
            series = ops.transpose(ops.relu(self.series(inputs[1])), (0, 2, 1))
            parts = [ops.reshape(x, (-1, 8 * n)) for x, n in ((picture, 36), (series, 10))]
            return self.head(ops.concatenate(parts, 1))

    return TwoInputs()


def build_mindspore():
    from mindspore import nn, ops

    class TwoInputs(nn.Cell):
        def __init__(self):
            super().__init__()
            self.picture = nn.Conv2d(3, 8, 3, pad_mode="valid", has_bias=True)
            self.series = nn.Conv1d(2, 8, 3, pad_mode="valid", has_bias=True)
            self.head = nn.Dense(8 * 36 + 8 * 10, 4)

        def construct(self, picture, series):
            picture, series = ops.relu(self.picture(picture)), ops.relu(self.series(series))
            parts = [x.reshape((x.shape[0], -1)) for x in (picture, series)]
            return self.head(ops.cat(parts, 1))

    return TwoInputs()
