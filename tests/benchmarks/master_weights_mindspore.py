"""MindSpore's part in ``master_weights.py``: a compiled step of a multilayer perceptron.

On CPU bfloat16 is simulated: the network's own parameters are float32 that holds rounded values,
so the figures compare the schemes with each other, and with no other framework's.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import mpcore as mp

if TYPE_CHECKING:
    from collections.abc import Callable


def set_threads(count: int) -> None:
    ms.runtime.launch_blocking()
    ms.runtime.dispatch_threads_num(count)


def versions() -> dict[str, str]:
    return {"mindspore": ms.__version__, "mpcore": mp.__version__}


def device() -> str:
    return str(ms.get_context("device_target"))


def build(policy: str, width: int, layers: int, rows: int) -> Callable[[], None]:
    ms.set_seed(0)
    cells = OrderedDict()
    for index in range(layers):
        cells[f"fc{index}"] = nn.Dense(width, width)
        cells[f"act{index}"] = nn.ReLU()
    model = nn.SequentialCell(cells).set_train()
    optimizer = nn.AdamWeightDecay(model.trainable_params(), 1e-3, weight_decay=0.01)
    amp = mp.prepare(model, optimizer, policy, count_lost_updates="off")
    x = Tensor(np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32))

    def loss_fn(x: Tensor) -> Tensor:
        return (model(x) ** 2).mean()

    cell = amp.train_cell(loss_fn, compiled=True)
    last = model.trainable_params()[-1]  # a bias

    def step() -> None:
        cell(x)
        # The loss is there before the update has run: whoever came next would pay for it.
        last.asnumpy()

    return step
