"""Averages of weights are float32, follow real steps, and go in and out of the model."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Trained

import mpcore as mp


@pytest.mark.parametrize("scheme", ["copy", "stochastic"])
def test_an_average_follows_real_steps_in_float32(kit, scheme):
    run = Trained(kit, mp.Policy.parse(f"model_bfloat16, master={scheme}"))
    average = mp.EMA(run.amp, decay=0.99)
    wanted = {name: value.astype(np.float64) for name, value in run.amp.weights().items()}
    for boost in (1.0, 1.0, np.inf, 1.0, 1.0):
        if run.step(boost=boost).stepped:
            for name, value in run.amp.weights().items():
                wanted[name] += (value - wanted[name]) * 0.01
    found = average.weights()
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-7, err_msg=name)

    before, mine = run.snapshot(), run.amp.weights()
    with average:
        inside = run.amp.weights()
    close = 0 if scheme == "copy" else 2.0**-8  # the 16-bit parameter is all there is
    for name, value in inside.items():
        np.testing.assert_allclose(value, found[name], rtol=close, atol=0, err_msg=name)
    for name, value in run.amp.weights().items():
        np.testing.assert_array_equal(value, mine[name], err_msg=name)
    after = run.snapshot()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)


def test_an_average_of_some_steps_and_its_end(kit):
    run = Trained(kit, "mixed_bfloat16")
    average = mp.EMA(run.amp, decay=0.0, every=2)
    run.step()
    first = average.weights()
    run.step()
    second = average.weights()
    name = max(first, key=lambda n: first[n].size)
    assert not np.array_equal(first[name], second[name])
    np.testing.assert_allclose(second[name], run.amp.weights()[name], rtol=1e-6)
    average.close()
    run.step()
    run.step()
    np.testing.assert_array_equal(average.weights()[name], second[name])


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [("decay", 1.0, r"in \[0, 1\)"), ("decay", True, r"in \[0, 1\)"), ("every", 0, ">= 1")],
)
def test_bad_arguments_are_named(kit, name, value, rule):
    run = Trained(kit, "float32")
    with pytest.raises(mp.BackendError, match=f"`{name}` must be .*{rule}"):
        mp.EMA(run.amp, **{name: value})
    assert run.amp.observers == []


def test_a_step_with_averaged_weights_is_refused_before_anything_moves(kit):
    run = Trained(kit, "mixed_bfloat16")
    average = mp.EMA(run.amp, decay=0.5)
    run.step()
    with average:
        before, skipped = run.snapshot(), run.amp.state
        with pytest.raises(mp.BackendError, match="must not run inside `with average:`"):
            run.step()
        after = run.snapshot()
        assert run.amp.state == skipped
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)
    assert run.step().stepped
