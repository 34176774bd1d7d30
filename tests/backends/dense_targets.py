"""A segmenter of pictures, a regression of volumes and a tagger of sequences, by ``MPCORE_TASK``.

Targets are as large as the inputs; layouts: channels first in two and three dimensions, and time
in front of the examples.
"""

import os

import numpy as np

from mpcore import Data, OptimizerSpec

task = os.environ["MPCORE_TASK"]
_NAME = os.environ.get("MPCORE_OPTIMIZER", "sgd")
# The first steps of RMSprop are thirty times as long.
_EPS = 1e-3 if _NAME in ("adam", "adamw") else 1e-8  # large: where it stands shows
_RATE = 0.0005 if _NAME == "rmsprop" else 0.02
optimizer = OptimizerSpec(_NAME, _RATE, weight_decay=0.01, eps=_EPS)
batch = 4
loss = "mse" if task == "volumes" else "cross_entropy"


def data() -> Data:
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype("f4")

    def classes(*shape: int) -> np.ndarray:
        return rng.integers(0, 3, shape).astype("i4")

    layout = "channels_first"
    if task == "pictures":
        x, y = numbers(16, 2, 6, 5), classes(16, 6, 5)
    elif task == "volumes":
        x, y = numbers(16, 2, 4, 5, 6), numbers(16, 3, 4, 5, 6)
    else:
        x, y, layout = numbers(16, 7, 2), classes(16, 7), "time_major"
    return Data(x, y, x[:4], y[:4], layout=layout, target_layout=layout)


def build_torch():
    from torch import nn

    if task == "pictures":
        return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 1))
    if task == "volumes":
        return nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv3d(4, 3, 1))

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.LSTM(2, 5, bias=False)  # time first
            self.head = nn.Linear(5, 3)

        def forward(self, x):
            return self.head(self.read(x)[0])

    return Tagger()


def build_tensorflow():
    import keras
    from keras import layers

    if task in ("pictures", "volumes"):
        conv = layers.Conv2D if task == "pictures" else layers.Conv3D
        shape = (6, 5, 2) if task == "pictures" else (4, 5, 6, 2)
        parts = [conv(4, 3, padding="same"), layers.Activation("tanh"), conv(3, 1)]
        return keras.Sequential([layers.Input(shape), *parts])
    read = layers.LSTM(5, return_sequences=True, use_bias=False)
    return keras.Sequential([layers.Input((7, 2)), read, layers.Dense(3)])


def build_mindspore():
    from mindspore import nn

    if task in ("pictures", "volumes"):
        conv = nn.Conv2d if task == "pictures" else nn.Conv3d
        first = conv(2, 4, 3, pad_mode="same", has_bias=True)
        return nn.SequentialCell(first, nn.Tanh(), conv(4, 3, 1, pad_mode="valid", has_bias=True))

    class Tagger(nn.Cell):
        def __init__(self):
            super().__init__()
            self.read = nn.LSTM(2, 5, has_bias=False)
            self.head = nn.Dense(5, 3)

        def construct(self, x):
            return self.head(self.read(x)[0])

    return Tagger()
