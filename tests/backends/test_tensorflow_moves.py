"""The move beside a policy in Keras: XLA takes the same step, through what times it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

import mpcore as mp
from mpcore.tools.experiment.experiment import Experiment
from mpcore.tools.profiling.stepping import Run

keras = pytest.importorskip("keras")

pytestmark = pytest.mark.backend("tensorflow")


def build():
    keras.utils.set_random_seed(0)
    layers = [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)]
    return keras.Sequential(layers)


def after_two_steps(name: str) -> list[np.ndarray]:
    x = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    y = np.arange(8, dtype=np.int32) % 3
    data = mp.Data(x, y, x[:0], y[:0])
    experiment = Experiment(
        "net", Path("(none)"), lambda: data, "cross_entropy",
        mp.OptimizerSpec("sgd", learning_rate=0.1), {"tensorflow": build}, batch=4,
    )  # fmt: skip
    start = partial(Run, experiment, "tensorflow", data, "mixed_bfloat16", steps=2)
    run = start()
    if name:
        run = start(move=run.backend.moves().moves(run.model, run.batches[0], 2)[name])
    assert [run.seconds() > 0, run.seconds() > 0] == [True, True]
    return [np.asarray(w) for w in run.model.weights]


def test_xla_takes_the_same_step() -> None:
    first = [np.asarray(w) for w in build().weights]
    plain, compiled = after_two_steps(""), after_two_steps("jit_compile")
    for before, one, other in zip(first, plain, compiled, strict=True):
        assert not np.array_equal(before, one)
        np.testing.assert_allclose(one, other, atol=3e-3)  # XLA keeps products of bfloat16 wider
