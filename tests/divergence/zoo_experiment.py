"""One classifier of the zoo as an experiment; ``ZOO_MODEL`` says which, ``ZOO_OPTIMIZER`` how."""

import importlib
import os
import sys
from pathlib import Path

import numpy as np

from mpcore import Data, OptimizerSpec

_HERE = Path(__file__).parents[1]
for _folder in ("zoo", "divergence", "backends"):
    if str(_HERE / _folder) not in sys.path:
        sys.path.append(str(_HERE / _folder))

zoo, unseen = (importlib.import_module(name) for name in ("zoo", "unseen"))

name = os.environ.get("ZOO_MODEL", "mlp")
loss = "cross_entropy"
optimizer = (
    OptimizerSpec("adam", 1e-3)
    if os.environ.get("ZOO_OPTIMIZER") == "adam"
    else OptimizerSpec("sgd", zoo.LEARNING_RATE, zoo.MOMENTUM)
)
steps, batch = 10, 12


def data() -> Data:
    rng = np.random.default_rng(int(os.environ.get("ZOO_SEED", "0")))
    drawn = [zoo.BATCHES[name](rng) for _ in range(20)]
    x, y = (np.concatenate([batch[i] for batch in drawn]) for i in range(2))
    return Data(x, y, x[:40], y[:40], layout="channels_first" if x.ndim == 4 else "")


def _model(framework):
    module = "unseen" if name in unseen.NAMES else "zoo"
    found = importlib.import_module(f"{module}_{framework}")
    return (found.MODELS if module == "unseen" else found.ZOO)[name].build()


def build_torch():
    return _model("torch")


def build_tensorflow():
    return _model("tensorflow")


def build_mindspore():
    return _model("mindspore")
