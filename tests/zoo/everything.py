"""An experiment with the ten architectures in one model, for conversions of whole files."""

from __future__ import annotations

import numpy as np
import zoo

from mpcore import Data

loss = "mse"


def data() -> Data:
    x = np.zeros((2, 1), np.float32)  # no part reads it
    return Data(x, x, x, x)


def build_torch():
    from torch import nn
    from zoo_torch import ZOO

    return nn.ModuleDict({name: entry.build() for name, entry in ZOO.items()})


def build_mindspore():
    from mindspore import nn
    from zoo_mindspore import ZOO

    class Everything(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            for name, entry in ZOO.items():
                setattr(self, name, entry.build())

    return Everything()


def build_tensorflow():
    import keras
    from zoo_tensorflow import ZOO

    class Everything(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.parts = {name: entry.build() for name, entry in ZOO.items()}

        def call(self, x, training=None):
            for name, part in self.parts.items():
                part(ZOO[name].batch(zoo.generator(name))[0], training=training)
            return x

    return Everything()
