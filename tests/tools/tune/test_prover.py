"""What cannot be proven by training is said, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpcore import Data, OptimizerSpec
from mpcore.tools.experiment.experiment import Experiment
from mpcore.tools.tune.bench import Bench
from mpcore.tools.tune.evidence import gather
from mpcore.tools.tune.proof import falls, off, within
from mpcore.tools.tune.prover import Prover
from mpcore.tools.tune.task import Task
from mpcore.tools.tune.words import lines

torch = pytest.importorskip("torch")
nn = torch.nn


def bench(rate: float, budget: float = 1e6, build: Any = None, steps: int = 4) -> Bench:
    x = np.random.default_rng(0).normal(size=(48, 8)).astype(np.float32)
    data = Data(x[:32], 0.5 * x[:32], x[32:], 0.5 * x[32:])
    experiment = Experiment(
        "net", Path("(none)"), lambda: data, "mse", OptimizerSpec("sgd", learning_rate=rate),
        {"torch": build or (lambda: nn.Linear(8, 8))}, batch=8,
    )  # fmt: skip
    task = Task("torch", budget=budget, steps=steps)
    return Bench(experiment, task, lambda **_: None, lambda _: ())


def why(one: Bench) -> str:
    (entry,) = [entry for entry in one.log.entries if entry["kind"] == "unproven"]
    return str(entry["why"])


@pytest.mark.parametrize("rate", [1e-30, 1e4])
def test_a_loss_that_does_not_fall_proves_nothing(rate: float) -> None:
    one = bench(rate)
    assert Prover(one).proven(["mixed_bfloat16", "float32"]) == ""
    assert "does not fall in 4 steps (" in why(one)
    assert "held out" in why(one)


def test_float32_as_the_answer_that_does_not_learn_is_said() -> None:
    one = bench(1e-30)
    assert Prover(one).proven(["float32"]) == "float32"
    assert (
        "float32 needs none; but the loss of float32 does not fall"
        in lines(gather(one.log.entries))[3]
    )
    one = bench(0.1)
    Prover(one).proven(["float32"])
    assert lines(gather(one.log.entries))[3].endswith("float32 needs none")


def test_a_flat_loss_does_not_fall_by_chance() -> None:
    rng = np.random.default_rng(0)
    flat = [falls(list(2.3 + 0.1 * rng.normal(size=40))) for _ in range(400)]
    assert 0 < sum(flat) < 40
    assert all(falls(list(2.3 * 0.9 ** np.arange(n))) for n in (2, 4, 12, 100))
    assert all(falls([2.0, *([0.1] * n)]) for n in (1, 3, 39))
    assert falls([np.nan, *np.linspace(2, 1, 20)])
    assert not falls([2.0, 1.0, np.nan])
    assert not falls([])


def test_an_evaluation_is_judged_by_single_examples() -> None:
    exact = np.random.default_rng(0).normal(size=200)
    assert off(exact, exact) == 0
    assert off(exact + 0.3 * np.tile([1, -1], 100), exact) > 0.2  # the mean is the same
    assert off(exact * np.nan, exact) == np.inf
    assert off(np.ones(4), np.ones(4)) == 0
    assert off(np.full(4, 2.0), np.ones(4)) == 1


def test_the_mean_of_orders_counts() -> None:
    assert not within([2.3], [2.0, 2.1, 1.9], None)[0]
    assert within([2.3, 2.1, 1.9], [2.0, 2.1, 1.9], None)[0]
    assert not within([2.3, 2.4, 2.2], [2.0, 2.1, 1.9], None)[0]
    assert not within([np.nan, 2.1, 1.9], [2.0, 2.1, 1.9], None)[0]


class Shifted(nn.Linear):
    """Rounds in 16 bits where it is evaluated, not where it is trained."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y if self.training else (y + 300) - 300


def test_weights_that_train_as_well_are_not_called_ruined() -> None:
    one = bench(1.0, build=lambda: Shifted(8, 8), steps=60)
    Prover(one).proven(["mixed_bfloat16", "float32"])
    (proof,) = [entry for entry in one.log.entries if entry["kind"] == "proof"]
    assert proof["trained"]
    assert proof["evaluate_in_float32"]
    told = lines(gather(one.log.entries))[3]
    assert "evaluate" in told
    assert "in float32" in told


class Draws(nn.Linear):
    """Draws random numbers in evaluation too."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * (1 + 0.5 * torch.randn(8))


def test_what_is_random_in_float32_too_is_not_the_policys() -> None:
    one = bench(0.1, build=lambda: Draws(8, 8), steps=8)
    Prover(one).proven(["mixed_bfloat16", "float32"])
    (proof,) = [entry for entry in one.log.entries if entry["kind"] == "proof"]
    assert not proof["evaluate_in_float32"]


def test_a_budget_that_is_too_short_for_the_training_is_said() -> None:
    one = bench(0.1, budget=1e-3)
    assert Prover(one).proven(["mixed_bfloat16"]) == ""
    assert "than is left of the budget" in why(one)


def test_a_loss_that_falls_is_a_proof() -> None:
    assert Prover(bench(0.1)).proven(["mixed_bfloat16"]) in ("mixed_bfloat16", "float32")
