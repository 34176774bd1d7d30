"""What ``mp.record`` adds to a step: plain and recorded steps in alternation, CPU time.

python tests/benchmarks/record_cost.py torch|tensorflow|mindspore [--out FILE.json]

Ratios are of neighbouring steps; the median and the quarters around it are told. The first
recorded step, whose tensors are kept whole, is measured alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import mpcore as mp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RNG = np.random.default_rng(0)

Side = tuple[Any, "Callable[[], Any]"]
"""A model, and what makes one step of it."""


def of_torch(name: str) -> Side:
    import torch
    from torch import nn
    from torch.nn import functional

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if name == "CNN":

        def block(channels: int, more: int) -> nn.Module:
            conv = nn.Conv2d(channels, more, 3, padding=1)
            return nn.Sequential(conv, nn.BatchNorm2d(more), nn.ReLU())

        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
        model = nn.Sequential(block(3, 32), block(32, 64), nn.MaxPool2d(2), block(64, 64), *head)
        x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    else:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        model = nn.Sequential(nn.Embedding(65, 256), blocks, nn.Linear(256, 65))
        x, y = torch.randint(0, 65, (8, 64)), torch.randint(0, 65, (8, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        out = model(x)
        functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1)).backward()
        optimizer.step()

    return model, step


def of_tensorflow(name: str, *, compiled: bool = False) -> Side:
    import keras
    import tensorflow as tf

    with_threads = tf.config.threading
    if not with_threads.get_intra_op_parallelism_threads():
        with_threads.set_intra_op_parallelism_threads(1)
        with_threads.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    layers = keras.layers
    if name == "CNN":

        def block(more: int) -> list[Any]:
            conv = layers.Conv2D(more, 3, padding="same")
            return [conv, layers.BatchNormalization(), layers.ReLU()]

        middle = [*block(64), layers.MaxPooling2D(2), *block(64)]
        head = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
        model = keras.Sequential([keras.Input((32, 32, 3)), *block(32), *middle, *head])
        x, y = RNG.normal(size=(32, 32, 32, 3)).astype("float32"), RNG.integers(0, 10, 32)
    else:
        inputs = keras.Input((64,))
        h = layers.Embedding(65, 256)(inputs)
        for _ in range(4):
            h = layers.LayerNormalization()(h + layers.MultiHeadAttention(4, 64)(h, h))
            more = layers.Dense(256)(layers.Dense(1024, activation="relu")(h))
            h = layers.LayerNormalization()(h + more)
        model = keras.Model(inputs, layers.Dense(65)(h))
        x, y = RNG.integers(0, 65, (8, 64)), RNG.integers(0, 65, (8, 64))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    batch = tf.constant(x), tf.constant(y)

    def step() -> None:
        with tf.GradientTape() as tape:
            value = loss(batch[1], model(batch[0], training=True))
        grads = tape.gradient(value, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)

    return model, tf.function(step) if compiled else step


def of_mindspore(name: str) -> Side:
    import mindspore as ms
    from mindspore import nn, ops

    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(0)
    ms.runtime.launch_blocking()
    if name == "CNN":

        def block(channels: int, more: int) -> nn.Cell:
            conv = nn.Conv2d(channels, more, 3, has_bias=True)
            return nn.SequentialCell(conv, nn.BatchNorm2d(more), nn.ReLU())

        middle = (block(32, 64), nn.MaxPool2d(2, 2), block(64, 64), nn.AvgPool2d(16))
        model = nn.SequentialCell(block(3, 32), *middle, nn.Flatten(), nn.Dense(64, 10))
        x = ms.Tensor(RNG.normal(size=(32, 3, 32, 32)).astype("float32"))
        y = ms.Tensor(RNG.integers(0, 10, 32).astype("int32"))
    else:
        wide = [nn.SequentialCell(nn.Dense(256, 1024), nn.GELU(), nn.Dense(1024, 256),
                                  nn.LayerNorm((256,))) for _ in range(8)]  # fmt: skip
        model = nn.SequentialCell(nn.Embedding(65, 256), *wide, nn.Dense(256, 65))
        x, y = (ms.Tensor(RNG.integers(0, 65, (8, 64)).astype("int32")) for _ in range(2))
    optimizer = nn.SGD(model.trainable_params(), 0.01, momentum=0.9)

    def forward() -> Any:
        out = model(x)
        return ops.cross_entropy(out.reshape((-1, out.shape[-1])), y.reshape((-1,)))

    differentiated = ms.value_and_grad(forward, None, optimizer.parameters)

    def step() -> None:
        value, grads = differentiated()
        optimizer(grads)
        value.asnumpy()

    return model, step


@contextlib.contextmanager
def _as_it_is() -> Iterator[None]:
    """Let a plain step be compiled, if it is, while another is recorded eagerly."""
    tf = sys.modules.get("tensorflow")
    if tf is None:
        yield
        return
    eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(False)
    yield
    tf.config.run_functions_eagerly(eager)


def measure(name: str, sides: list[Side], every: int, steps: int) -> dict[str, Any]:
    """Return the cost of recorded steps beside plain ones."""

    def timed(side: int) -> float:
        with contextlib.nullcontext() if side else _as_it_is():
            start = time.process_time()
            sides[side][1]()
            return time.process_time() - start

    for side in (0, 1, 0, 1, 0, 1):
        timed(side)
    seconds: tuple[list[float], list[float]] = [], []
    with tempfile.TemporaryDirectory() as folder:
        recording = mp.record(sides[1][0], folder, steps=10**6, every=every)
        first = timed(1)  # kept whole
        if every == 1:
            for side in (1, 0):  # compiled once
                timed(side)
        for number in range(steps):
            for side in (0, 1) if number % 2 else (1, 0):
                seconds[side].append(timed(side))
        recording.stop()
    plain, recorded = map(statistics.median, seconds)
    ratios = [b / a for a, b in zip(*seconds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "model": name,
        "every": every,
        "steps": steps,
        "plain_ms": round(plain * 1e3, 1),
        "recorded_ms": round(recorded * 1e3, 1),
        "ratio_median": round(middle, 3),
        "ratio_quarters": [round(low, 3), round(high, 3)],
        "ratio_of_sums": round(sum(seconds[1]) / sum(seconds[0]), 4),
        "first_step_ratio": round(first / plain, 2),
    }


def cases(framework: str) -> Iterator[tuple[str, list[Side]]]:
    make = {"torch": of_torch, "tensorflow": of_tensorflow, "mindspore": of_mindspore}[framework]
    for name in ("CNN", "transformer" if framework != "mindspore" else "dense"):
        yield name, [make(name) for _ in range(2)]
        if framework == "tensorflow":
            yield f"{name}, tf.function", [of_tensorflow(name, compiled=True) for _ in range(2)]


def main() -> None:
    """Print, and write if asked, the cost in one framework."""
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=("torch", "tensorflow", "mindspore"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--only", default="", help="models whose name holds it")
    asked = parser.parse_args()
    found = []
    for name, sides in cases(asked.framework):
        if asked.only not in name:
            continue
        for every, steps in ((1, asked.steps), (50, 100)):
            found.append(measure(name, sides, every, steps))
            print(json.dumps(found[-1]), flush=True)
    if asked.out:
        load = [round(x, 1) for x in os.getloadavg()]
        about = {"framework": asked.framework, "cores": os.cpu_count(), "load": load, "threads": 1}
        asked.out.write_text(json.dumps(about | {"cost": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
