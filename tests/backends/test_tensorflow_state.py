"""A state written for Keras goes on in its LossScaleOptimizer as ours would."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import mpcore as mp
from mpcore.scaling.transition import advance, initial_state

pytestmark = pytest.mark.backend("tensorflow")


@pytest.fixture
def keras():
    return pytest.importorskip("keras", reason="keras is not installed")


@pytest.mark.parametrize("seed", range(3))
def test_keras_goes_on_as_ours_would(keras, seed):
    rng = random.Random(seed)
    rule = mp.LossScale.named("keras", growth_interval=4)
    state = initial_state(rule)
    for _ in range(rng.randrange(30)):
        state = advance(rule, state, rng.random() < 0.8)
    data, _ = mp.export_scaler("keras", rule, state)
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.0),
        initial_scale=data["initial_scale"],
        dynamic_growth_steps=data["dynamic_growth_steps"],
    )
    weight = keras.Variable([1.0])
    optimizer.build([weight])
    optimizer.dynamic_scale.assign(data["dynamic_scale"])
    optimizer.step_counter.assign(data["step_counter"])
    for finite in [rng.random() < 0.8 for _ in range(50)]:
        optimizer.apply([keras.ops.array([0.0 if finite else float("inf")])], [weight])
        state = advance(rule, state, finite)
        assert float(optimizer.dynamic_scale.numpy()) == state.scale
    dumped = {
        "dynamic_scale": optimizer.dynamic_scale.numpy(),
        "step_counter": optimizer.step_counter.numpy(),
        "initial_scale": optimizer.initial_scale,
        "dynamic_growth_steps": optimizer.dynamic_growth_steps,
    }
    assert mp.import_scaler(dumped) == (rule, state._replace(skipped_steps=0), [])


def test_a_file_is_loaded_and_saved(keras, tmp_path: Path):
    policy = mp.Policy.named("mixed_float16")
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), policy)
    amp.state = mp.LossScaleState(96.0, 7, 3)
    amp.save(tmp_path / "run.amp")
    amp.state = initial_state(policy.scaling)
    assert amp.load(tmp_path / "run.amp") == []
    assert amp.state == mp.LossScaleState(96.0, 7, 3)
    assert amp.optimizer.state == amp.state
