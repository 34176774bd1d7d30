"""Ctrl-C and errors anywhere in a step of Keras: the state before it, or the one after it.

python tests/borders/test_tensorflow_interrupts.py [--seed N] [--lines N] [--presses N]
    [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import timeit
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.backend("tensorflow"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow"),
]
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from keras_nets import CROSS_ENTROPY, X, Y, arrays, differing, net  # noqa: E402
from planted import Campaign, Outcome, PlantedError, interrupted, lines, package  # noqa: E402

import mpcore as mp  # noqa: E402

POLICIES = ("mixed_float16", "model_bfloat16, master=split")


class Run:
    """A prepared model, one way to train it, and how many batches a call of it takes."""

    def __init__(self, policy: str, way: str, *, averaged: bool = False) -> None:
        self.model, self.way = net(), way
        self.followed = tf.Variable(0)
        self.amp = mp.prepare(
            self.model,
            keras.optimizers.Adam(0.01),
            policy,
            after_step=[lambda: self.followed.assign_add(1)],
        )
        # It follows the steps, and is no part of them: an error in it comes behind the step.
        self.average = mp.EMA(self.amp, decay=0.5) if averaged else None
        self.model.compile(
            optimizer=self.amp.optimizer, loss=CROSS_ENTROPY, run_eagerly=way == "eager fit"
        )
        self.batches = 4 if way == "fit" else 1

    def loss(self, x: Any, y: Any) -> Any:
        return CROSS_ENTROPY(y, self.model(x, training=True))

    def train(self) -> None:
        """Take ``batches`` batches, all of the same rows."""
        if self.way == "step":
            self.amp.step(self.loss, X, Y)
        elif self.way == "fit":
            rows = np.tile(X, (self.batches, 1)), np.tile(Y, self.batches)
            self.model.fit(*rows, batch_size=len(X), shuffle=False, verbose=0)
        else:
            self.model.train_on_batch(X, Y)

    def state(self) -> dict[str, Any]:
        found = arrays(self.model, self.amp)
        average = {} if self.average is None else self.average.weights()
        found |= {f"average {name}": value for name, value in average.items()}
        metrics = {v.path for v in self.model.metrics_variables}
        state = np.array(self.amp.state)
        more = {"scale": state, "followed": self.followed.numpy()}
        return {k: v for k, v in found.items() if k not in metrics} | more


def wanted(policy: str, way: str, count: int, *, averaged: bool = False) -> list[dict[str, Any]]:
    """Return the states after 0, 1, 2 ... batches of a run that nothing meets."""
    run = Run(policy, "eager fit" if way == "eager fit" else "step", averaged=averaged)
    if way == "fit":
        run.way, run.batches = "fit", 1
    found = [run.state()]
    for _ in range(count):
        run.train()
        found.append(run.state())
    return found


def at(state: dict[str, Any], states: list[dict[str, Any]]) -> int | None:
    """Return the batches after which that is the state; None if it is none of them."""
    values = list(state.values())
    for count, other in enumerate(states):
        if not differing(dict(enumerate(values)), dict(enumerate(other.values()))):
            return count
    return None


def judge(run: Run, states: list[dict[str, Any]], outcome: Outcome, where: str, first: int) -> None:
    """Say where a run stands after a fault, then let it go on."""
    count = at(run.state(), states)
    if count is None or not first <= count <= first + run.batches:
        outcome.add("torn", where)
        return
    outcome.add("before" if count == first else "after", where)
    before = run.batches
    try:
        run.batches = 1
        run.train()
    except Exception as error:  # any of them means the same
        outcome.add("stuck", f"{where}: {error!r:.200}")
        return
    finally:
        run.batches = before
    if at(run.state(), states) != count + 1:
        outcome.add("torn", f"{where}, one step later")


def planted(policy: str, way: str, count: int, seed: int, *, traced: bool) -> Outcome:
    """Let a line of ours fail, in a step that is traced or in one that was traced before."""
    outcome, generator = Outcome(), random.Random(seed)
    folders = [package("mpcore_tensorflow"), package("mpcore")]
    states = wanted(policy, way, 9 if way == "fit" else 3)  # two calls, and a batch

    def prepared() -> Run:
        run = Run(policy, way)
        if traced:
            run.train()
        return run

    run = prepared()
    with lines(folders, None) as seen:
        run.train()
    for place in generator.sample(range(len(seen)), min(count, len(seen))):
        run = prepared()
        try:
            with lines(folders, place) as reached:
                run.train()
        except Exception as error:
            # Autograph makes an error of its own of one that it meets in a user's code.
            if not isinstance(error, PlantedError) and "planted at line" not in str(error):
                raise
            first = run.batches if traced else 0
            judge(run, states, outcome, f"{way} {policy}: {reached[-1]}", first)
        else:
            outcome.add("none", str(place))
    return outcome


def pressed(policy: str, way: str, count: int, seed: int) -> Outcome:
    """Press Ctrl-C at random moments of steps that were traced before."""
    outcome, generator = Outcome(), random.Random(seed)
    run = Run(policy, way, averaged=True)
    states = wanted(policy, way, (4 + count) * (run.batches + 1), averaged=True)
    run.train()
    took = min(timeit.repeat(run.train, repeat=3, number=1))  # other processes slow some of them
    for _ in range(count):
        first = at(run.state(), states)
        assert first is not None
        came = interrupted(run.train, generator.uniform(0, took))
        if not came:
            outcome.add("none", "")
            continue
        judge(run, states, outcome, f"{way} {policy}", first)
    return outcome


@pytest.mark.parametrize("policy", POLICIES)
def test_a_line_that_fails_in_a_step(policy):
    outcome = planted(policy, "step", 12, 1, traced=True)
    assert not outcome.bad, str(outcome)
    assert outcome.counts["before"]


def test_a_line_that_fails_while_a_step_is_traced():
    outcome = planted("model_bfloat16, master=split", "step", 5, 2, traced=False)
    assert not outcome.bad, str(outcome)


@pytest.mark.parametrize("way", ["step", "fit"])
def test_ctrl_c(way):
    outcome = pressed("model_bfloat16, master=split", way, 10, 3)
    assert not outcome.bad, str(outcome)


def test_an_error_at_the_end_of_fit_leaves_no_float32_values_open():
    """Keras lets the optimizer write its averages there, behind the last step."""
    run = Run("model_bfloat16, master=split", "step")
    run.train()
    optimizer, before = run.amp.optimizer, run.state()
    folders = [package("mpcore_tensorflow")]
    variables = run.model.trainable_variables
    with lines(folders, None) as seen:
        optimizer.finalize_variable_values(variables)
    for place in range(len(seen)):
        with pytest.raises(PlantedError), lines(folders, place):
            optimizer.finalize_variable_values(variables)
        assert not differing(before, run.state()), seen[place]


def test_an_eager_step_that_fails_is_undone():
    """The forward pass has moved BatchNorm, then the loss fails."""
    run = Run("mixed_float16", "eager fit")
    run.train()
    before = run.state()

    def fails(y, logits):
        raise PlantedError

    run.model.compile(optimizer=run.amp.optimizer, loss=fails, run_eagerly=True)
    with pytest.raises(PlantedError):
        run.train()
    assert not differing(before, run.state())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--presses", type=int, default=50)
    parser.add_argument("--json", default="", help="a file for the numbers")
    given = parser.parse_args()
    campaign = Campaign(given.json, tensorflow=tf.__version__, seed=given.seed)
    for policy in POLICIES:
        for way in ("step", "fit"):
            found = pressed(policy, way, given.presses, given.seed)
            campaign.add("Ctrl-C", f"{policy} {way}", found)
            for traced in (True, False):
                found = planted(policy, way, given.lines, given.seed, traced=traced)
                campaign.add("lines", f"{policy} {way} traced={traced}", found)


if __name__ == "__main__":
    main()
