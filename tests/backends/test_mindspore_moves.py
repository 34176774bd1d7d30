"""The move beside a policy in MindSpore: a compiled step is the same, through what times it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

import mpcore as mp
from mpcore.tools.experiment.experiment import Experiment
from mpcore.tools.profiling.stepping import Run

ms = pytest.importorskip("mindspore")

pytestmark = pytest.mark.backend("mindspore")


def build():
    ms.set_seed(0)
    nn = ms.nn
    net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 3))
    rng = np.random.default_rng(1)
    for parameter in net.get_parameters():
        values = 0.3 * rng.normal(size=parameter.shape)
        parameter.set_data(ms.Tensor(values.astype(np.float32)))
    return net


def after_two_steps(name: str) -> list[np.ndarray]:
    x = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    y = np.arange(8, dtype=np.int32) % 3
    data = mp.Data(x, y, x[:0], y[:0])
    experiment = Experiment(
        "net", Path("(none)"), lambda: data, "cross_entropy",
        mp.OptimizerSpec("sgd", learning_rate=0.1), {"mindspore": build}, batch=4,
    )  # fmt: skip
    start = partial(Run, experiment, "mindspore", data, "mixed_float16", steps=2)
    run = start()
    if name:
        run = start(move=run.backend.moves().moves(run.model, run.batches[0], 2)[name])
    assert [run.seconds() > 0, run.seconds() > 0] == [True, True]
    return [p.asnumpy() for p in run.model.get_parameters()]


def test_a_compiled_step_is_the_same() -> None:
    first = [p.asnumpy() for p in build().get_parameters()]
    plain, compiled = after_two_steps(""), after_two_steps("ms.jit")
    for before, one, other in zip(first, plain, compiled, strict=True):
        assert not np.array_equal(before, one)
        np.testing.assert_allclose(one, other, atol=1e-3)
