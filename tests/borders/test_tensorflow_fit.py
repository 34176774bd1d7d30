"""Keras' own loop over a prepared model ends where amp.step does, and resumes from its files."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytestmark = [
    pytest.mark.backend("tensorflow"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow"),
]
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from keras_nets import CROSS_ENTROPY, arrays, differing, net  # noqa: E402

import mpcore as mp  # noqa: E402

BATCH, STEPS, EPOCHS = 8, 10, 3
RNG = np.random.default_rng(7)
X = RNG.normal(size=(BATCH * STEPS, 6)).astype("f4")
Y = RNG.integers(0, 3, BATCH * STEPS).astype("i4")
X[3 * BATCH + 2] = np.inf  # one batch of ten
DYNAMIC = mp.LossScale(init_scale=2.0**10, growth_interval=6)
POLICIES = {
    "mixed_float16": mp.Policy.named("mixed_float16").with_loss_scale(DYNAMIC),
    **{
        scheme: mp.Policy.of(f"model_bfloat16, master={scheme}").with_loss_scale(DYNAMIC)
        for scheme in ("copy", "split", "kahan", "stochastic")
    },
}


def optimizer(**options):
    schedule = keras.optimizers.schedules.CosineDecay(0.02, 40)
    return keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=0.5, **options)


def prepared(policy, frozen=False, **options):
    model = net()
    model.get_layer("fc1").trainable = not frozen
    amp = mp.prepare(model, optimizer(**options), policy)
    model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
    return model, amp


def fit(model, epochs=EPOCHS, **options):
    return model.fit(
        X, Y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, **options
    ).history


def by_steps(model, amp, epochs=EPOCHS):
    def loss_fn(x, y):
        return model.compute_loss(x=x, y=y, y_pred=model(x, training=True))

    results = []
    for _ in range(epochs):
        for start in range(0, len(X), BATCH):
            results.append(amp.step(loss_fn, X[start : start + BATCH], Y[start : start + BATCH]))
    return results


@pytest.mark.parametrize("name", POLICIES)
def test_fit_is_the_loop_of_amp_step(name):
    """Clipping, a schedule and overflows: bit-equal, the state of the loss scale too."""
    model, amp = prepared(POLICIES[name])
    log = fit(model, callbacks=[amp.callback()])
    other, stepped = prepared(POLICIES[name])
    results = by_steps(other, stepped)
    pairs = zip(arrays(model, amp).values(), arrays(other, stepped).values(), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert amp.state == stepped.state
    assert amp.state.skipped_steps == EPOCHS
    assert int(amp.optimizer.inner_optimizer.iterations) == EPOCHS * (STEPS - 1)
    ends = results[STEPS - 1 :: STEPS]
    assert log["grad_norm"] == pytest.approx([end.grad_norm for end in ends], rel=1e-6)
    assert log["loss_scale"] == [end.next_scale for end in ends]
    assert log["skipped_steps"] == [1, 2, 3]


def test_accumulation_of_the_optimizer():
    ends = []
    for train in (lambda model, amp: fit(model), by_steps):
        model, amp = prepared(POLICIES["split"], gradient_accumulation_steps=3)
        train(model, amp)
        ends.append([*arrays(model, amp).values(), np.array(amp.state)])
    assert all(np.array_equal(a, b) for a, b in zip(*ends, strict=True))


def test_an_average_moves_under_fit():
    averages = []
    for train in (lambda model, amp: fit(model), by_steps):
        model, amp = prepared(POLICIES["split"])
        average = mp.EMA(amp, decay=0.9)
        train(model, amp)
        averages.append(average.weights())
        assert differing(average.weights(), amp.weights())
    assert not differing(*averages)


def test_an_average_wants_each_step():
    model, amp = prepared(POLICIES["mixed_float16"])
    average = mp.EMA(amp)
    model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY, steps_per_execution=2)
    before = arrays(model, amp)
    with pytest.raises(mp.BackendError, match=r"`steps_per_execution` must be 1.*EMA.*got 2"):
        fit(model)
    assert not differing(before, arrays(model, amp))
    average.close()
    fit(model, epochs=1)
    assert differing(before, arrays(model, amp))


def test_a_monitor_has_the_true_norm():
    model, amp = prepared(POLICIES["mixed_float16"])
    with mp.Monitor(amp) as monitor:
        fit(model, epochs=1)
    other, stepped = prepared(POLICIES["mixed_float16"])
    for record, result in zip(monitor.records, by_steps(other, stepped, 1), strict=True):
        assert record["stepped"] == result.stepped
        assert record["scale"] == result.scale
        if result.stepped:
            assert record["grad_norm"] == pytest.approx(result.grad_norm, rel=1e-6)
            assert record["loss"] == pytest.approx(result.loss, rel=1e-6)
    assert [record["reason"] is None for record in monitor.records].count(False) == 1


class KilledError(Exception):
    pass


def kill_at(epoch):
    def kill(now, logs):
        if now == epoch:
            raise KilledError

    return keras.callbacks.LambdaCallback(on_epoch_begin=kill)


@pytest.mark.parametrize(
    ("name", "frozen"), [*((name, False) for name in POLICIES), ("copy", True), ("split", True)]
)
def test_a_killed_run_goes_on_bit_for_bit(name, frozen, tmp_path):
    """Keras' own callback, its file of weights, and a dict of ours beside the bare model."""
    whole, amp = prepared(POLICIES[name], frozen)
    fit(whole)
    wanted, state, weights = arrays(whole, amp), amp.state, amp.weights()

    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    saved = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True
    )
    model, _ = prepared(POLICIES[name], frozen)
    with pytest.raises(KilledError):
        fit(model, callbacks=[saved, backup, kill_at(2)])

    for resume in ("backup", "file") if name == "split" else ("backup",):
        model, amp = prepared(POLICIES[name], frozen)
        if resume == "backup":
            again = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
            fit(model, callbacks=[again])
        else:
            model.load_weights(tmp_path / "2.weights.h5")
            fit(model, initial_epoch=2)
        found = arrays(model, amp)
        wrong = [
            k
            for (k, a), b in zip(wanted.items(), found.values(), strict=True)
            if not np.array_equal(a, b)
        ]
        assert not wrong, resume
        assert amp.state == state
        assert not differing(weights, amp.weights())


@pytest.mark.parametrize("name", ["copy", "split", "kahan"])
@pytest.mark.parametrize("order", ["model first", "amp first"])
def test_the_dict_of_amp_beside_weights_of_the_model(name, order):
    """What a host keeps that knows nothing of our optimizer: 16-bit weights, and the dict."""
    model, amp = prepared(POLICIES[name])
    fit(model, epochs=1)
    state, weights = amp.state_dict(), model.get_weights()
    slots = [v.numpy() for v in amp.optimizer.inner_optimizer.variables]
    assert set(state["masters"]) == {"fc1.kernel", "fc1.bias", "fc2.kernel", "fc2.bias"}
    other, again = prepared(POLICIES[name])
    loads = [lambda: other.set_weights(weights), lambda: again.load_state_dict(state)]
    for load in loads if order == "model first" else reversed(loads):
        load()
    for variable, value in zip(again.optimizer.inner_optimizer.variables, slots, strict=True):
        variable.assign(value)
    assert not differing(amp.weights(), again.weights())
    fit(model, epochs=1)
    fit(other, epochs=1)
    assert not differing(amp.weights(), again.weights())
    assert amp.state == again.state
    state["masters"]["fc1.kernel"][0] = 7
    with pytest.raises(mp.CheckpointError, match=r"fc1\.kernel"):
        again.load_state_dict(state)


def test_a_whole_file_is_prepared_again(tmp_path):
    model, amp = prepared(POLICIES["split"])
    fit(model, epochs=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    again = mp.prepare(loaded, loaded.optimizer, POLICIES["split"])
    loaded.compile(optimizer=again.optimizer, loss=CROSS_ENTROPY)
    for one in (model, loaded):
        fit(one, initial_epoch=2)
    assert not differing(amp.weights(), again.weights())
    assert amp.state == again.state


def test_a_file_elsewhere_says_what_it_needs(tmp_path):
    model, _ = prepared(POLICIES["mixed_float16"])
    fit(model, epochs=1)
    model.save(tmp_path / "model.keras")
    script = (
        "import sys, keras\n"
        "if sys.argv[2:]:\n"
        "    import mpcore_tensorflow\n"
        "try:\n"
        "    print(type(keras.models.load_model(sys.argv[1]).optimizer).__name__)\n"
        "except TypeError as error:\n"
        "    print(error)\n"
        "print(keras.models.load_model(sys.argv[1], compile=False).count_params())\n"
    )
    for more, wanted in (
        ([], "`import mpcore_tensorflow` before load_model"),
        (["imported"], "TransactionalOptimizer"),
    ):
        command = [sys.executable, "-c", script, str(tmp_path / "model.keras"), *more]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        first, *_, last = run.stdout.splitlines()
        assert wanted in first
        assert int(last) == model.count_params()
