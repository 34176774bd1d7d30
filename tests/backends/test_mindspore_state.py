"""A state written for MindSpore's two scalers goes on there as ours would."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import mpcore as mp
from mpcore.scaling.transition import advance, initial_state

pytestmark = pytest.mark.backend("mindspore")


@pytest.fixture
def ms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes rank_0/ into the working directory
    return pytest.importorskip("mindspore", reason="mindspore is not installed")


def walked(rule, seed):
    rng, state = random.Random(seed), initial_state(rule)
    for _ in range(rng.randrange(30)):
        state = advance(rule, state, rng.random() < 0.8)
    outcomes = [rng.random() < 0.8 for _ in range(50)]
    scales, after = [], state
    for finite in outcomes:
        after = advance(rule, after, finite)
        scales.append(after.scale)
    return state, outcomes, scales, after


@pytest.mark.parametrize("seed", range(3))
def test_the_scaler_goes_on(ms, seed):
    rule = mp.LossScale.named("mindspore", growth_interval=4, growth_factor=3.0, backoff_factor=3.0)
    state, outcomes, ours, after = walked(rule, seed)
    data, _ = mp.export_scaler("mindspore", rule, state)
    scaler = ms.amp.DynamicLossScaler(
        data["scale_value"], data["scale_factor"], data["scale_window"]
    )
    ms.ops.assign(scaler.counter, ms.Tensor(data["counter"], ms.int32))
    native = []
    for finite in outcomes:
        scaler.adjust(ms.Tensor(finite))
        native.append(float(scaler.scale_value.asnumpy()))
    assert native == ours
    keys = ("scale_value", "scale_window", "scale_factor", "counter")
    dumped = {
        key: value.asnumpy() if isinstance(value, ms.Tensor) else value
        for key, value in ((key, getattr(scaler, key)) for key in keys)
    }
    assert mp.import_scaler(dumped) == (rule, after._replace(skipped_steps=0), [])


@pytest.mark.parametrize("seed", range(3))
def test_the_manager_goes_on(ms, seed):
    rule = mp.LossScale.named("mindspore_manager", growth_interval=4)
    state, outcomes, ours, after = walked(rule, seed)
    data, _ = mp.export_scaler("mindspore_manager", rule, state)
    manager = ms.amp.DynamicLossScaleManager()
    for key, value in data.items():
        setattr(manager, key, value)
    native = []
    for finite in outcomes:
        manager.update_loss_scale(not finite)
        native.append(manager.get_loss_scale())
    assert native == ours
    back, again, _ = mp.import_scaler({key: getattr(manager, key) for key in data})
    assert back == rule
    assert again == after._replace(skipped_steps=0)


def test_a_file_is_loaded_and_saved(ms, tmp_path: Path):
    policy = mp.Policy.named("mixed_float16").with_loss_scale("keras")
    net = ms.nn.Dense(2, 1)
    amp = mp.prepare(net, ms.nn.SGD(net.trainable_params(), 0.1), policy)
    amp.state = mp.LossScaleState(2.0**-140, 7, 3)
    amp.save(tmp_path / "run.amp")
    amp.state = initial_state(policy.scaling)
    amp.load(tmp_path / "run.amp")
    assert amp.state == mp.LossScaleState(2.0**-140, 7, 3)
