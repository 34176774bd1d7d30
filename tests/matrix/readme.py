"""The first block of README with a model of one framework in it; run from the wheel alone.

python tests/matrix/readme.py FRAMEWORK
"""

from __future__ import annotations

import functools
import re
import sys
import tempfile
from pathlib import Path

import numpy as np

README = Path(__file__).parents[2] / "README.md"
ROWS, FEATURES, CLASSES = 16, 8, 4


def numpy():
    from mpcore_numpy.kit import kit, loss_and_gradients

    model = kit.model()
    loss_fn = functools.partial(loss_and_gradients, boost=np.float32(1))
    return model, kit.sgd(model, 0.1, 0.0), loss_fn, lambda x, y: (x, y)


def torch():
    import torch
    from torch import nn

    model = nn.Sequential()
    model.add_module("body", nn.Linear(FEATURES, 16))
    model.add_module("act", nn.ReLU())
    model.add_module("head", nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return model, optimizer, lambda x, y: nn.functional.cross_entropy(model(x), y), tensors(torch)


def tensors(torch):
    return lambda x, y: (torch.from_numpy(x), torch.from_numpy(y).long())


def tensorflow():
    import keras
    import tensorflow as tf

    model = keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Dense(16, "relu", name="body"),
            keras.layers.Dense(CLASSES, name="head"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    as_tensors = lambda x, y: (tf.constant(x), tf.constant(y))  # noqa: E731
    return model, keras.optimizers.SGD(0.1), lambda x, y: loss(y, model(x)), as_tensors


def mindspore():
    import mindspore as ms
    from mindspore import nn

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.body, self.act = nn.Dense(FEATURES, 16), nn.ReLU()
            self.head = nn.Dense(16, CLASSES)

        def construct(self, x):
            return self.head(self.act(self.body(x)))

    model, loss = Net(), nn.CrossEntropyLoss()
    optimizer = nn.SGD(model.trainable_params(), 0.1)
    as_tensors = lambda x, y: (ms.Tensor(x), ms.Tensor(y))  # noqa: E731
    return model, optimizer, lambda x, y: loss(model(x), y), as_tensors


def main() -> None:
    model, optimizer, loss_fn, as_tensors = globals()[sys.argv[1]]()
    import mpcore

    assert "site-packages" in mpcore.__file__, mpcore.__file__
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, FEATURES)).astype(np.float32)
    y = generator.integers(CLASSES, size=ROWS).astype(np.int32)
    block = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[1]
    names = {"model": model, "optimizer": optimizer, "loss_fn": loss_fn}
    names["batches"] = [as_tensors(x, y)] * 3
    with tempfile.TemporaryDirectory() as folder:
        exec(block.replace('"run.amp"', repr(str(Path(folder) / "run.amp"))), names)
        assert (Path(folder) / "run.amp").exists()
    assert names["result"].stepped


if __name__ == "__main__":
    main()
