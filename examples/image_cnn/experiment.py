"""The small image CNN on Fashion-MNIST, the same in three frameworks.

    mpcore compare examples/image_cnn/experiment.py

With MPCORE_DATA set to a folder that holds cifar10_exact.npz, it trains on CIFAR-10 instead.
"""

import os
from pathlib import Path

import numpy as np

from mpcore import Data, OptimizerSpec

loss = "cross_entropy"
optimizer = OptimizerSpec("sgd", learning_rate=0.01, momentum=0.9)
steps, batch = 30, 16

_CIFAR = Path(os.environ.get("MPCORE_DATA", ".")) / "cifar10_exact.npz"
_USE_CIFAR = "MPCORE_DATA" in os.environ and _CIFAR.is_file()
name = "image_cnn on CIFAR-10" if _USE_CIFAR else "image_cnn on Fashion-MNIST"
channels, size = (3, 32) if _USE_CIFAR else (1, 28)
features = 64 * (((size - 2) // 2 - 2) // 2) ** 2  # after two 3x3 convolutions and two poolings


def data() -> Data:
    path = _CIFAR if _USE_CIFAR else Path(__file__).parent / "data" / "fashion_mnist.npz"
    with np.load(path) as arrays:
        x_train, x_test = arrays["x_train"], arrays["x_test"]
        y_train, y_test = arrays["y_train"].astype("i4"), arrays["y_test"].astype("i4")

    def images(x: np.ndarray) -> np.ndarray:
        x = (x.reshape(len(x), size, size, channels).transpose(0, 3, 1, 2) / 255.0 - 0.5) / 0.25
        return np.ascontiguousarray(x, np.float32)

    return Data(images(x_train), y_train, images(x_test), y_test, layout="channels_first")


def build_torch():
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def build_tensorflow():
    import keras
    from keras import layers

    return keras.Sequential(
        [
            layers.Input((size, size, channels)),
            layers.Conv2D(32, 3),
            layers.ReLU(),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3),
            layers.ReLU(),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(128),
            layers.ReLU(),
            layers.Dense(10),
        ]
    )


def build_mindspore():
    from mindspore import nn

    def conv(channels_in, channels_out):
        # MindSpore pads by default and has no bias: say what the others do.
        return nn.Conv2d(channels_in, channels_out, 3, pad_mode="valid", has_bias=True)

    return nn.SequentialCell(
        conv(channels, 32),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        conv(32, 64),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Flatten(),
        nn.Dense(features, 128),
        nn.ReLU(),
        nn.Dense(128, 10),
    )
