"""Every variable that a forward pass assigns is put back when its step is skipped."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = [
    pytest.mark.backend("tensorflow"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow"),
]
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from keras_nets import (  # noqa: E402
    BAD,
    CROSS_ENTROPY,
    X,
    Y,
    arrays,
    assigning_net,
    differing,
    loss_of,
    net,
)

import mpcore as mp  # noqa: E402

SCHEMES = ("copy", "split", "kahan", "stochastic")
POLICIES = ("mixed_float16", *(f"model_bfloat16, master={scheme}" for scheme in SCHEMES))


def stepping(how, model, amp):
    """Return what trains on one batch."""
    if how == "step":
        loss_fn = loss_of(model)
        return lambda x, **options: amp.step(loss_fn, x, Y, **options)
    if how == "own loop":

        @tf.function(autograph=False)
        def own(x):
            with tf.GradientTape() as tape:
                scaled = amp.optimizer.scale_loss(loss_of(model)(x, Y))
            grads = tape.gradient(scaled, model.trainable_variables)
            amp.optimizer.apply(grads, model.trainable_variables)

        return own
    model.compile(
        optimizer=amp.optimizer,
        loss=CROSS_ENTROPY,
        run_eagerly=how == "eager fit",
        jit_compile=how == "compiled fit",
    )
    return lambda x: model.train_on_batch(x, Y)


def check(policy, how, **options):
    model = assigning_net()
    optimizer = keras.optimizers.Adam(0.01)
    amp = mp.prepare(model, optimizer, policy)
    train = stepping(how, model, amp)
    train(X, **options)
    before, skipped = arrays(model, amp), amp.state.skipped_steps
    train(BAD, **options)
    assert amp.state.skipped_steps == skipped + 1
    assert not differing(before, arrays(model, amp))
    train(X, **options)
    after = arrays(model, amp)
    moved = differing(before, after)
    assert {"own.raw"} < set(moved)
    for name in ("spectral/fc1/kernel", "own/trained", "own/branch", "own/mean"):
        assert any(name in one for one in moved), name
    assert all(np.isfinite(value).all() for value in after.values() if value.dtype.kind == "f")


@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_a_forward_pass_assigns(policy):
    check(policy, "step")


@pytest.mark.parametrize("how", ["fit", "eager fit", "compiled fit", "own loop"])
def test_in_every_way_of_training(how):
    check("model_bfloat16, master=split", how)


@pytest.mark.parametrize("policy", ["mixed_float16", "model_bfloat16, master=split"])
def test_with_micro_batches(policy):
    check(policy, "step", micro_batches=2)


def test_a_dropped_micro_batch_leaves_nothing():
    """The step is that of the clean half alone, bit for bit."""
    ends = []
    for x, y in ((BAD, Y), (X[8:], Y[8:])):
        model = assigning_net()
        optimizer = keras.optimizers.Adam(0.01)
        amp = mp.prepare(model, optimizer, "mixed_float16", on_bad_micro_batch="drop")
        loss_fn = loss_of(model)
        for _ in range(2):
            result = amp.step(loss_fn, x, y, micro_batches=2 if len(x) == 16 else 1)
            assert result.stepped
        assert result.dropped == (len(x) == 16)
        ends.append(arrays(model, amp))
    values = zip(*(end.values() for end in ends), strict=True)
    assert all(np.array_equal(a, b) for a, b in values)


def test_frozen_weights_with_master_values():
    model = assigning_net()
    model.get_layer("spectral").trainable = False
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "model_bfloat16, master=split")
    loss_fn = loss_of(model)
    amp.step(loss_fn, X, Y)
    before, weights = arrays(model, amp), amp.weights()
    assert not amp.step(loss_fn, BAD, Y).stepped
    assert not differing(before, arrays(model, amp))
    assert not differing(weights, amp.weights())


def test_variables_that_are_no_part_of_the_model():
    model, queue = net(), tf.Variable(tf.zeros(3))
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "mixed_float16")
    traces = []

    def loss_fn(x, y):
        traces.append(1)
        logits = model(x, training=True)
        queue.assign_add(tf.reduce_mean(tf.cast(logits, "float32"), axis=0))
        return CROSS_ENTROPY(y, logits)

    amp.step(loss_fn, X, Y)
    before = queue.numpy()
    assert before.any()
    assert not amp.step(loss_fn, BAD, Y).stepped
    assert np.array_equal(before, queue.numpy())
    assert len(traces) == 2  # once more, when it was seen; not at each step

    @tf.function(autograph=False)
    def own(x):
        with tf.GradientTape() as tape:
            scaled = amp.optimizer.scale_loss(loss_fn(x, Y))
        amp.optimizer.apply(
            tape.gradient(scaled, model.trainable_variables), model.trainable_variables
        )

    own(BAD)  # known by now
    assert np.array_equal(before, queue.numpy())


def test_a_loop_of_its_own_is_told_what_is_not_put_back():
    model, queue = net(), tf.Variable(tf.zeros(3))

    def own_step(amp):
        @tf.function(autograph=False)
        def own(x):
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                queue.assign_add(tf.reduce_mean(tf.cast(logits, "float32"), axis=0))
                scaled = amp.optimizer.scale_loss(CROSS_ENTROPY(Y, logits))
            grads = tape.gradient(scaled, model.trainable_variables)
            amp.optimizer.apply(grads, model.trainable_variables)

        return own

    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "mixed_float16")
    with pytest.warns(mp.MpcoreWarning, match=r"float32\(3,\).*restore_on_skip"):
        own_step(amp)(X)
    amp.release()
    optimizer = keras.optimizers.SGD(0.1)
    amp = mp.prepare(model, optimizer, "mixed_float16", restore_on_skip=[queue])
    own = own_step(amp)
    own(X)
    before = queue.numpy()
    own(BAD)
    assert np.array_equal(before, queue.numpy())


def test_metrics_and_seeds_are_not_put_back():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.Input((6,)), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
    )
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "mixed_float16")
    model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY, metrics=["accuracy"])
    seed = model.layers[0].seed_generator.state
    before = seed.numpy()
    model.train_on_batch(BAD, Y)  # without a warning
    assert amp.state.skipped_steps == 1
    assert not np.array_equal(before, seed.numpy())
