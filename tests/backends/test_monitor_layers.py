"""What a Monitor sees of the layers, in every framework, and of Keras' ``fit``."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Trained, X, Y, oracle_weights

import mpcore as mp
from mpcore.numerics.dtypes import FORMATS


def policy(scale):
    return mp.Policy.named("mixed_float16").with_loss_scale(mp.LossScale(init_scale=scale))


def test_layers_of_sampled_steps_are_what_their_gradients_say(kit):
    run = Trained(kit, policy(1.0), weights=oracle_weights())
    step = run.kit.batch(X, Y, 1.0)
    with mp.Monitor(run.amp, layers=2) as monitor:
        results, befores = [], []
        for _ in range(4):
            befores.append(run.amp.weights())
            results.append(run.amp.step(run.loss_fn, *step, keep_grads=monitor.sample()))
    assert ["layers" in record for record in monitor.records] == [False, True, False, True]
    names = {name.rpartition(".")[0] for name in results[1].grads}
    after = befores[2]
    assert names == set(monitor.records[1]["layers"]) >= {"fc1", "fc2"}
    formats = {row.path: row.compute for row in run.amp.plan.layers}
    for layer, seen in monitor.records[1]["layers"].items():
        mine = [name for name in results[1].grads if name.rpartition(".")[0] == layer]
        grads = np.concatenate([np.asarray(results[1].grads[name]).ravel() for name in mine])
        scaled = np.abs(grads.astype(np.float64)) * results[1].scale
        form = FORMATS[formats[layer]]
        small = (scaled > 0) & (scaled < form.smallest_normal)
        assert seen["small"] == pytest.approx(small.mean())
        assert seen["zero"] == pytest.approx((scaled == 0).mean())
        assert seen["large"] == 0
        old, new = (np.concatenate([w[name].ravel() for name in mine]) for w in (befores[1], after))
        ratio = np.linalg.norm(np.float64(new) - old) / np.linalg.norm(old)
        assert seen["update"] == pytest.approx(ratio, rel=1e-6)
    assert any(seen["small"] > 0 for seen in monitor.records[1]["layers"].values())


def test_a_skipped_step_has_gradients_and_no_update(kit):
    run = Trained(kit, policy(128.0), weights=oracle_weights())
    with mp.Monitor(run.amp, layers=1) as monitor:
        batch = run.kit.batch(X, Y, np.inf)
        assert not run.amp.step(run.loss_fn, *batch, keep_grads=monitor.sample()).stepped
    (record,) = monitor.records
    assert any(seen["large"] > 0 for seen in record["layers"].values())
    assert not any("update" in seen for seen in record["layers"].values())


@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize("each", [1, 2])
def test_fit_is_followed_by_a_callback(kit, each):
    import keras

    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), policy(128.0))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(amp.optimizer, loss, steps_per_execution=each)
    x = np.tile(X[:16], (2, 1))
    x[8:16] = 1e30  # the second batch of each epoch overflows
    with mp.Monitor(amp, every=2) as monitor:
        model.fit(
            x, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[monitor.callback()]
        )
    assert [record["step"] for record in monitor.records] == [2, 4, 6, 8]
    assert [record["stepped"] for record in monitor.records] == [False, True, False, True]
    assert [record["skipped_steps"] for record in monitor.records] == [1, 1, 2, 2]
    assert [record["next_scale"] for record in monitor.records] == [64, 64, 32, 32]
    assert isinstance(monitor.records[0]["loss"], float | str)


@pytest.mark.backend("torch")
def test_a_framework_without_callbacks_says_so(kit):
    with pytest.raises(mp.BackendError, match=r"`amp\.step` is followed without"):
        mp.Monitor(Trained(kit, policy(128.0)).amp).callback()


@pytest.mark.backend("mindspore")
def test_the_callback_of_mindspore_is_that_of_the_prepared_network(kit):
    run = Trained(kit, policy(128.0))
    with mp.Monitor(run.amp) as monitor:
        assert type(monitor.callback()) is type(run.amp.callback())
