"""A step of the reference that an error meets at any line: before it or after, never between."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
from planted import Outcome, PlantedError, differing, lines, package

import mpcore as mp
from mpcore_numpy.kit import kit as reference

pytestmark = pytest.mark.backend("numpy")

POLICIES = ["float32", "mixed_float16", "model_bfloat16, master=split", "model_bfloat16"]


def prepared(policy, adam, bad, calls):
    model = reference.model()
    optimizer = reference.adam(model, 0.01) if adam else reference.sgd(model, 0.1, 0.9)
    follow = [partial(calls.append, "first"), partial(calls.append, "second")]
    amp = mp.prepare(model, optimizer, policy, after_step=follow, on_bad_micro_batch=bad)
    return model, optimizer, amp


def run(policy, adam, bad, boost, at=None):
    """Take two steps, the second with a fault; return the state and what was seen."""
    calls = []
    model, optimizer, amp = prepared(policy, adam, bad, calls)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 8)).astype("f4"), rng.integers(4, size=12)
    loss_fn = reference.loss_fn(model)
    step = partial(amp.step, loss_fn, x, y, micro_batches=1 if bad == "skip" else 3)
    step(np.float32(1))

    def state():
        arrays = reference.snapshot(model, optimizer, amp) | amp.weights()
        return arrays | {"scale": amp.state, "calls": tuple(calls), "steps": amp.optimizer_steps}

    before, raised = state(), False
    with lines([package("mpcore"), package("mpcore_numpy")], at) as seen:
        try:
            step(np.float32(boost))
        except PlantedError:
            raised = True
    after = state()
    assert step(np.float32(1)).stepped
    return before, after, seen, raised


def test_an_error_at_any_line_leaves_the_state_before_or_after():
    chance, found = random.Random(3), Outcome()
    for _ in range(12):
        case = (
            chance.choice(POLICIES),
            chance.random() < 0.5,
            chance.choice(["skip", "drop"]),
            chance.choice([1.0, np.inf]),
        )
        before, after, every, _ = run(*case)
        for at in chance.sample(range(len(every)), 25):
            _, now, seen, raised = run(*case, at=at)
            word = "torn"
            if not raised:
                word = "none"
            elif not differing(now, before):
                word = "before"
            elif not differing(now, after):
                word = "after"
            found.add(word, f"{case} {seen[-1]}")
    assert not found.bad, found
    assert found.counts["before"] > 50
    assert found.counts["after"] > 5


def test_after_step_that_raises_comes_behind_a_whole_step():
    calls = []

    def bad():
        msg = "planted"
        raise ValueError(msg)

    states = []
    for follow in ([bad, partial(calls.append, 1)], [partial(calls.append, 1)]):
        model = reference.model()
        optimizer = reference.adam(model, 0.01)
        amp = mp.prepare(model, optimizer, "mixed_float16", after_step=follow)
        rng = np.random.default_rng(0)
        batch = rng.normal(size=(12, 8)).astype("f4"), rng.integers(4, size=12), np.float32(1)
        step = partial(amp.step, reference.loss_fn(model), *batch)
        if bad in follow:
            with pytest.raises(ValueError, match="planted") as caught:
                step()
            assert "the step was complete but for this" in caught.value.__notes__[0]
        else:
            step()
        states.append(reference.snapshot(model, optimizer, amp) | {"state": amp.state})
        assert amp.last.stepped
    assert calls == [1, 1]
    assert not differing(*states)
