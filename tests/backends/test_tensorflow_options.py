"""Several optimizers, guards, callables, collapse in fit, the emulated device: Keras' own ways."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pytestmark = [
    pytest.mark.backend("tensorflow"),
    # absl and protobuf inside TensorFlow, at import and when a model is saved
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow"),
]
# Collected in every framework's process, run in one: a missing framework is not an error there.
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

import mpcore as mp  # noqa: E402
from mpcore.numerics.overflow import saturate  # noqa: E402
from mpcore_tensorflow import TransactionalOptimizer, emulated_ascend  # noqa: E402

layers = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 8)).astype("f4")
Y = RNG.integers(0, 4, 32).astype("i4")
BIG = X * np.float32(1e6)  # finite in float32, infinite in float16
SCALED = "float32, loss_scale=dynamic(init_scale=1024, growth_interval=4)"
FIXED = "float32, loss_scale=static(1024)"
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def net(*extra):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(16, name="fc1"),
            layers.BatchNormalization(name="bn"),
            *extra,
            layers.ReLU(name="act"),
            layers.Dense(4, name="fc2"),
        ]
    )


def sgd(*over, rate=0.1):
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    if over:
        optimizer.build([v for layer in over for v in layer.trainable_variables])
    return optimizer


def loss_of(model):
    return lambda x, y: CROSS_ENTROPY(y, model(x, training=True))


def two(policy=SCALED, make=sgd, **options):
    """Return a model whose two halves have an optimizer each."""
    model = net()
    a = make(model.get_layer("fc1"), model.get_layer("bn"))
    return model, mp.prepare(model, {"a": a, "b": make(model.get_layer("fc2"))}, policy, **options)


def values(*owners):
    return [np.asarray(v.numpy(), "f4") for owner in owners for v in owner.variables]


def same(before, after):
    return all(map(np.array_equal, before, after)) and len(before) == len(after)


# --- several optimizers


def test_unbuilt_optimizer_is_refused_with_the_way_out():
    model = net()
    before = values(model)
    with pytest.raises(
        mp.OptimizerError, match=r"'1' must be built.*1\.build\(model\.part\.trainable_variables\)"
    ):
        mp.prepare(model, [sgd(model.get_layer("fc1")), sgd()], SCALED)
    assert same(before, values(model))
    mp.prepare(model, sgd(), SCALED)  # nothing was changed: it can be prepared still


def test_overlapping_optimizers_are_refused():
    model = net()
    fc1, fc2 = model.get_layer("fc1"), model.get_layer("fc2")
    with pytest.raises(mp.OptimizerError, match=r"'1' must not move .*fc1\.kernel, '0' does"):
        mp.prepare(model, [sgd(fc1), sgd(fc1, fc2)], SCALED)


def test_one_optimizer_must_hold_all():
    model = net()
    with pytest.raises(mp.OptimizerError, match=r"was built without .*fc2/kernel"):
        mp.prepare(model, sgd(model.get_layer("fc1"), model.get_layer("bn")), SCALED)
    model.get_layer("fc2").trainable = False
    amp = mp.prepare(model, sgd(model.get_layer("fc1"), model.get_layer("bn")), SCALED)
    assert amp.step(loss_of(model), X, Y).stepped


def test_prepared_optimizer_among_several_is_refused():
    model = net()
    wrapped = TransactionalOptimizer(sgd(model.get_layer("fc1")))
    with pytest.raises(mp.OptimizerError, match=r"'0' must not be prepared already"):
        mp.prepare(model, [wrapped, sgd(model.get_layer("fc2"))], SCALED)


def test_scale_is_shared_and_settable_from_either():
    _, amp = two()
    a, b = amp.optimizers.values()
    assert a.dynamic_scale is b.dynamic_scale
    amp.state = mp.LossScaleState(64.0, 2, 5)
    assert a.state == b.state == amp.state == mp.LossScaleState(64.0, 2, 5)
    with pytest.raises(mp.BackendError, match=r"amp\.optimizers\['a'\].*amp\.optimizers\['b'\]"):
        _ = amp.optimizer


def test_state_of_several_is_saved_and_loaded(tmp_path):
    model, amp = two()
    amp.step(loss_of(model), X * np.float32(np.inf), Y)
    amp.save(tmp_path / "run.amp")
    tf.train.Checkpoint(model=model, **amp.optimizers).write(str(tmp_path / "weights"))
    other, again = two()
    assert again.load(tmp_path / "run.amp") == []
    assert again.state == amp.state
    amp.step(loss_of(model), X, Y)
    again.step(loss_of(other), X, Y)
    assert same(values(model), values(other))


def test_checkpoint_holds_masters_and_slots_of_several(tmp_path):
    model, amp = two("model_float16")
    for _ in range(2):
        amp.step(loss_of(model), X, Y)
    path = tf.train.Checkpoint(model=model, **amp.optimizers).write(str(tmp_path / "run"))
    other, again = two("model_float16")
    tf.train.Checkpoint(model=other, **again.optimizers).read(path).assert_consumed()
    assert [len(o.masters) for o in again.optimizers.values()] == [2, 2]
    first, second = amp.step(loss_of(model), X, Y), again.step(loss_of(other), X, Y)
    assert first.loss == second.loss
    assert same(values(model, *amp.optimizers.values()), values(other, *again.optimizers.values()))


@pytest.mark.parametrize("policy", ["mixed_float16", "model_float16", "model_bfloat16"])
def test_two_optimizers_equal_one_in_every_policy(policy):
    model = net()
    amp = mp.prepare(model, sgd(), policy)
    other, both = two(policy)
    for x in (X, BIG * 1e30, X):
        one, pair = amp.step(loss_of(model), x, Y), both.step(loss_of(other), x, Y)
        assert one.stepped == pair.stepped
    assert same(values(model), values(other))


def test_weights_of_no_optimizer_stay():
    model = net()
    fc1, bn = model.get_layer("fc1"), model.get_layer("bn")
    amp = mp.prepare(model, {"a": sgd(fc1), "b": sgd(bn)}, SCALED)
    before = values(model.get_layer("fc2"))
    assert amp.step(loss_of(model), X, Y).stepped
    assert same(before, values(model.get_layer("fc2")))


def test_frozen_weights_leave_their_optimizer():
    model, amp = two()
    loss_fn = loss_of(model)
    for _ in range(2):  # the second time the step was traced before
        model.get_layer("fc1").trainable = False
        before = values(model.get_layer("fc1"))
        result = amp.step(loss_fn, X, Y, keep_grads=True)
        assert "fc1.kernel" not in result.grads
        assert same(before, values(model.get_layer("fc1")))
        model.get_layer("fc1").trainable = True
        amp.step(loss_fn, X, Y)
        assert not same(before, values(model.get_layer("fc1")))


def test_clip_of_one_optimizer_is_not_spoiled_by_the_other():
    """Under skip_scope="optimizer" the norm of one may be inf or NaN."""
    rule = mp.LossScale(init_scale=1024.0, skip_scope="optimizer")
    model, amp = two(mp.Policy().with_loss_scale(rule), make=lambda *v: sgd(*v, rate=1.0))
    loss_fn = loss_of(model)
    losses = {"a": loss_fn, "b": lambda x, y: loss_fn(x, y) * np.float32(np.inf)}
    kernel = model.get_layer("fc1").kernel
    before = [v.numpy() for v in model.trainable_variables]
    result = amp.step(losses, X, Y, clip_norm=1e-3)
    assert result.stepped_by == {"a": True, "b": False}
    moved = [a - v.numpy() for a, v in zip(before, model.trainable_variables, strict=True)]
    assert np.linalg.norm([np.linalg.norm(m) for m in moved]) == pytest.approx(1e-3, rel=1e-3)
    assert np.isfinite(kernel.numpy()).all()


def test_guarded_weights_that_an_optimizer_moved_stay_moved():
    rule = mp.LossScale(init_scale=1024.0, skip_scope="optimizer")
    model = net()
    parts = {"a": sgd(model.get_layer("fc1")), "b": sgd(model.get_layer("fc2"))}
    policy = mp.Policy().with_loss_scale(rule)
    amp = mp.prepare(model, parts, policy, restore_on_skip=[model])
    loss_fn = loss_of(model)
    losses = {"a": loss_fn, "b": lambda x, y: loss_fn(x, y) * np.float32(np.inf)}
    before = [values(model.get_layer(n)) for n in ("fc1", "fc2", "bn")]
    assert amp.step(losses, X, Y).stepped_by == {"a": True, "b": False}
    after = [values(model.get_layer(n)) for n in ("fc1", "fc2", "bn")]
    assert [same(b, a) for b, a in zip(before, after, strict=True)] == [False, True, True]


def test_compiled_step_is_kept_for_equal_dicts():
    model, amp = two()
    loss_fn = loss_of(model)
    for _ in range(3):
        amp.step({"a": loss_fn, "b": loss_fn}, X, Y)
    assert len(amp._compiled) == 1
    amp.step(loss_fn, X, Y, optimizer="b")
    assert len(amp._compiled) == 2


# --- windows


def embedding():
    keras.utils.set_random_seed(0)
    return keras.Sequential([layers.Input((2,), dtype="int32"), layers.Embedding(6, 3, name="e")])


@pytest.mark.parametrize("option", ["skip", "drop"])
def test_sparse_gradients_add_up(option):
    tokens = np.array([[1, 1], [1, 2], [4, 4], [1, 5]], "i4")
    grads = []
    for count in (1, 2, 4):
        model = embedding()
        policy = "float32, loss_scale=static(64)"
        amp = mp.prepare(model, keras.optimizers.Adam(0.1), policy, on_bad_micro_batch=option)

        def loss_fn(t, model=model):
            return tf.reduce_mean(model(t) ** 2)

        result = amp.step(loss_fn, tokens, keep_grads=True, micro_batches=count)
        grads.append((result.grads["e.embeddings"].numpy(), values(model)[0]))
    for grad, weights in grads[1:]:
        np.testing.assert_allclose(grad, grads[0][0], rtol=1e-6)
        np.testing.assert_allclose(weights, grads[0][1], rtol=1e-5, atol=1e-7)


def test_dropped_sparse_micro_batch_leaves_no_trace():
    tokens = np.array([[1, 1], [1, 2], [4, 4], [1, 5]], "i4")
    boost = np.array([1.0, np.inf, 1.0, 1.0], "f4")
    ends = []
    for rows in ([0, 1, 2, 3], [0, 2, 3]):
        model = embedding()
        policy = "float32, loss_scale=static(64)"
        amp = mp.prepare(model, keras.optimizers.Adam(0.1), policy, on_bad_micro_batch="drop")

        def loss_fn(t, b, model=model):
            return tf.reduce_mean(tf.reduce_mean(model(t) ** 2, axis=(1, 2)) * b)

        result = amp.step(loss_fn, tokens[rows], boost[rows], micro_batches=len(rows))
        assert result.stepped
        ends.append(values(model)[0])
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("option", ["skip", "drop"])
def test_missing_gradients_in_a_window(option):
    model = net()
    fc1 = model.get_layer("fc1")
    amp = mp.prepare(model, sgd(), "float32", on_bad_micro_batch=option)
    result = amp.step(lambda x: tf.reduce_mean(fc1(x) ** 2), X, micro_batches=4, keep_grads=True)
    assert result.stepped
    assert set(result.grads) == {"fc1.kernel", "fc1.bias"}
    with pytest.raises(mp.BackendError, match="`loss_fn` must depend on the trainable weights"):
        amp.step(lambda x: tf.reduce_mean(x), X, micro_batches=4)


def test_window_takes_nested_batches_and_scalars():
    model = net()
    amp = mp.prepare(model, sgd(), FIXED)

    def loss_fn(batch, weight):
        return CROSS_ENTROPY(batch["y"], model(batch["x"], training=False)) * weight

    whole = amp.step(loss_fn, {"x": X, "y": Y}, 0.5)
    model = net()
    again = mp.prepare(model, sgd(), FIXED)
    cut = again.step(loss_fn, {"x": X, "y": Y}, 0.5, micro_batches=2)
    assert cut.loss == pytest.approx(whole.loss, rel=1e-6)


def test_window_follows_a_change_of_batch_size():
    """tf.function then traces with an unknown size."""
    model = net()
    amp = mp.prepare(model, sgd(), FIXED)
    loss_fn = loss_of(model)
    for rows in (32, 16, 8):
        assert amp.step(loss_fn, X[:rows], Y[:rows], micro_batches=4).stepped
    with pytest.raises(mp.BackendError, match="must divide the batch evenly, got 4 for 6 rows"):
        amp.step(loss_fn, X[:6], Y[:6], micro_batches=4)


def test_sparse_tensor_is_not_cut():
    model = net()
    amp = mp.prepare(model, sgd(), FIXED)
    sparse = tf.sparse.from_dense(X)
    with pytest.raises(mp.BackendError, match="got a SparseTensor"):
        amp.step(lambda x: tf.reduce_mean(model(tf.sparse.to_dense(x))), sparse, micro_batches=2)


def test_micro_batches_run_one_after_the_other():
    """Else their activations would be in memory all at once."""
    model = net()
    amp = mp.prepare(model, sgd(), FIXED)
    order = []

    def noted(word, value):
        # Stateful ones would be kept in order by TensorFlow itself.
        said = tf.numpy_function(
            lambda v: order.append(word) or v, [value], value.dtype, stateful=False
        )
        return tf.ensure_shape(said, value.shape)

    @tf.custom_gradient
    def note(logits):
        return tf.identity(logits), lambda upstream: noted("back", upstream)

    def loss_fn(x, y):
        return CROSS_ENTROPY(y, note(model(noted("in", x), training=False)))

    for _ in range(3):
        order.clear()
        amp.step(loss_fn, X, Y, micro_batches=4)
        assert order == ["in", "back"] * 4


# --- what moves along, and what is put back


@pytest.mark.parametrize("way", ["step", "fit"])
def test_everything_that_is_guarded_is_put_back(way):
    teacher = net()
    queue, memory = tf.Variable(tf.zeros(3)), keras.Variable(np.zeros(2, "f4"))
    model = Remembering(teacher, queue, memory)
    model(X)
    amp = mp.prepare(
        model, sgd(), "mixed_float16", restore_on_skip=[teacher, {"queue": [queue]}, memory]
    )
    model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
    for x in (X, BIG, BIG, X):
        if way == "step":
            amp.step(loss_of(model), x, Y)
        else:
            model.fit(x, Y, batch_size=32, verbose=0)
    assert amp.state.skipped_steps == 2
    assert queue.numpy().tolist() == [2.0] * 3
    assert memory.numpy().tolist() == [2.0] * 2
    assert np.isfinite(values(teacher)[4]).all()


class Remembering(keras.Model):
    def __init__(self, teacher, queue, memory):
        super().__init__()
        self.inner = net()
        self._seen = lambda: (teacher, queue, memory)  # out of Keras' sight

    def call(self, x, training=False):
        teacher, queue, memory = self._seen()
        if training:
            teacher(x, training=True)
            queue.assign_add(tf.ones(3))
            memory.assign_add(tf.ones(2))
        return self.inner(x, training=training)


def test_guard_says_what_it_takes():
    for wrong in ("teacher", 3, lambda: None):
        with pytest.raises(
            mp.BackendError, match=r"`restore_on_skip` must hold keras models, layers or"
        ):
            mp.prepare(net(), sgd(), SCALED, restore_on_skip=[wrong])


@pytest.mark.parametrize("way", ["step", "fit"])
def test_average_made_by_hand_equals_that_of_the_clean_run(way):
    ends = []
    for pattern in ([0, 1, 0, 1, 1, 0], [0, 0, 0]):
        model = net()
        shadows = [tf.Variable(v.value) for v in model.trainable_variables]

        def average(model=model, shadows=shadows):
            for shadow, variable in zip(shadows, model.trainable_variables, strict=True):
                shadow.assign(0.9 * shadow + 0.1 * variable)

        amp = mp.prepare(model, sgd(), FIXED, after_step=[average])
        model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
        for bad in pattern:
            x = X * np.float32(np.inf) if bad else X
            if way == "step":
                amp.step(loss_of(model), x, Y)
            else:
                model.fit(x, Y, batch_size=32, verbose=0)
        ends.append([s.numpy() for s in shadows] + values(model))
    assert same(*ends)
    assert not same(ends[0][:2], values(net())[:2])


@pytest.mark.parametrize("frequency", [None, 2])
def test_average_of_keras_equals_that_of_the_clean_run(frequency):
    ends = []
    for pattern in ([0, 1, 0, 1, 1, 0], [0, 0, 0]):
        model = net()
        optimizer = keras.optimizers.Adam(
            0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=frequency
        )
        amp = mp.prepare(model, optimizer, FIXED)
        for bad in pattern:
            amp.step(loss_of(model), X * np.float32(np.inf) if bad else X, Y)
        ends.append(values(model, optimizer))
    assert same(*ends)


def test_failure_while_a_step_runs_leaves_all_but_buffers():
    model = net()
    amp = mp.prepare(model, sgd(), SCALED)

    def loss_fn(x, y):
        loss = CROSS_ENTROPY(y, model(x, training=True))
        tf.debugging.assert_less(tf.reduce_max(y), 3 + tf.cast(loss * 0.0 + 1.0, tf.int32))
        return loss

    def kept():
        return [v.numpy() for v in (*model.trainable_variables, *amp.optimizer.variables)]

    assert amp.step(loss_fn, X, Y).stepped
    before, state = kept(), amp.state
    wrong = np.r_[Y[:31], 9].astype("i4")
    for count in (1, 2):
        with pytest.raises(tf.errors.InvalidArgumentError):
            amp.step(loss_fn, X, wrong, micro_batches=count)
        assert same(before, kept())
        assert amp.state == state
    assert amp.step(loss_fn, X, Y).stepped


# --- collapse in fit


def collapsing(rule, x, epochs=1, batch=8, **options):
    policy = mp.Policy.named("mixed_float16").with_loss_scale(rule)
    model = net()
    amp = mp.prepare(model, sgd(), policy)
    model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY, **options)
    data = (x, np.resize(Y, len(x)))
    look = [amp.callback()]
    model.fit(*data, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=look)
    return amp


@pytest.mark.parametrize("executed", [1, 4])
def test_fit_that_collapses_says_so(executed):
    rule = mp.LossScale(patience=4, on_collapse="raise")
    with pytest.raises(mp.LossScaleError, match="4 steps in a row were skipped"):
        collapsing(rule, np.tile(BIG, (2, 1)), steps_per_execution=executed)
    with pytest.warns(mp.MpcoreWarning, match="4 steps in a row were skipped, the loss scale is"):
        collapsing(mp.LossScale(patience=4), BIG, steps_per_execution=executed)


def test_fit_that_collapses_at_the_end_of_an_epoch():
    """Fewer batches than ``patience``; the count is of the device, not of Keras' batch numbers."""
    with pytest.warns(mp.MpcoreWarning, match="3 steps in a row were skipped"):
        collapsing(mp.LossScale(patience=25), BIG[:24], steps_per_execution=2)


def test_fit_that_does_not_collapse_is_quiet():
    rule = mp.LossScale(patience=4, on_collapse="raise")
    x = np.concatenate([BIG[:8], BIG[:8], X[:8], BIG[:8]])  # never the whole of a look
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        amp = collapsing(rule, x, epochs=3)
        collapsing(mp.LossScale(patience=2, on_collapse="ignore"), BIG)
    assert amp.state.skipped_steps == 9


def test_look_waits_for_the_device_only_when_it_is_due(monkeypatch):
    reads = []
    real = TransactionalOptimizer.state.fget

    def counted(self):
        reads.append(1)
        return real(self)

    model = net()
    policy = mp.Policy.named("mixed_float16").with_loss_scale(mp.LossScale(patience=10))
    amp = mp.prepare(model, sgd(), policy)
    model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
    begun = []
    first = keras.callbacks.LambdaCallback(on_epoch_begin=lambda e, logs: begun.append(len(reads)))
    monkeypatch.setattr(TransactionalOptimizer, "state", property(counted))
    model.fit(
        np.tile(X, (2, 1)),
        np.tile(Y, 2),
        batch_size=8,
        verbose=0,
        callbacks=[amp.callback(), first],
    )
    assert len(reads) - begun[0] <= 4  # 8 batches, one look at the end of the epoch


def test_collapse_is_seen_in_a_loop_of_ones_own():
    model = net()
    amp = mp.prepare(model, sgd(), "mixed_float16")
    model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
    model.fit(BIG, Y, batch_size=8, verbose=0)
    with pytest.warns(mp.MpcoreWarning, match="4 steps in a row were skipped"):
        amp.check_collapse()
    amp.state = mp.LossScaleState(64.0, 0, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        amp.check_collapse()  # a loaded count is no step


# --- an emulated device


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("traced", [False, True])
def test_operations_saturate_by_the_rule(dtype, traced):
    top = float(tf.as_dtype(dtype).max)
    numbers = np.array([1.0, -2.0, top, -top, np.inf, -np.inf, np.nan, 0.0], "f4")
    x = tf.cast(numbers, dtype)

    def double(x):
        return x * tf.constant(2.0, dtype)

    expected, overflowed = saturate(np.asarray(double(x), "f4"), dtype)
    assert overflowed
    with emulated_ascend() as device:
        run = tf.function(double) if traced else double
        stored = np.asarray(run(x).numpy(), "f4")
        assert device.overflowed
        device.clear()
        assert np.asarray(run(tf.cast([1.0, 2.0], dtype)).numpy(), "f4").tolist() == [2.0, 4.0]
        assert not device.overflowed
    np.testing.assert_array_equal(stored, expected)
    assert not np.isfinite(np.asarray(double(x), "f4")).all()  # outside nothing saturates


@pytest.mark.parametrize("traced", [False, True])
def test_backward_pass_saturates_too(traced):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(x * 1e30 * 1e30)
        return y, tape.gradient(y, x)

    x = tf.constant([1e-30, 2e-30])  # the forward pass stays finite
    assert np.isinf(gradient(x)[1]).all()
    with emulated_ascend() as device:
        y, grad = (tf.function(gradient) if traced else gradient)(x)
        assert np.isfinite(y)
        np.testing.assert_array_equal(grad, np.full(2, np.finfo("f4").max))
        assert device.overflowed


def test_saturated_operation_has_its_usual_backward_pass():
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(x * tf.constant(1e30))
        return tape.gradient(y, x)

    @tf.function
    def inner(x):
        return x * tf.constant(1e30)

    @tf.function
    def branched(x):
        return tf.cond(x[0] > 0, lambda: x * tf.constant(1e30), lambda: x)

    def through(function):
        def nested(x):  # the backward pass of a function is made from its graph, not from a tape
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(function(x))
            return tape.gradient(y, x)

        return tf.function(nested)

    with emulated_ascend() as device:
        for run in (gradient, tf.function(gradient), through(inner), through(branched)):
            device.clear()
            np.testing.assert_array_equal(run(tf.constant([1e20])), np.array([1e30], "f4"))
            assert device.overflowed


def test_overflow_in_a_branch_or_a_loop_raises_the_flag():
    @tf.function
    def run(x):
        y = tf.cond(x[0] > 0, lambda: x * 1e30, lambda: x)
        return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y * 1e10), [0, y])[1]

    with emulated_ascend() as device:
        assert run(tf.constant([1.0])).numpy().max() == np.finfo("f4").max
        assert device.overflowed
        device.clear()
        run(tf.constant([-1.0]))
        assert not device.overflowed


def test_overflow_in_a_recurrent_layer_is_seen():
    """Inside the backward pass of a loop nothing is stored: it is where the values leave it."""
    keras.utils.set_random_seed(0)
    with emulated_ascend():
        model = keras.Sequential(
            [layers.Input((5, 8)), layers.SimpleRNN(4, activation=None, name="rnn")]
        )
        model.get_layer("rnn").cell.recurrent_kernel.assign(tf.eye(4) * 1e10)
        policy = mp.Policy().with_loss_scale("static(1)")
        amp = mp.prepare(model, sgd(rate=1e-30), policy)
        x = RNG.normal(size=(2, 5, 8)).astype("f4")
        # Forward: 1e10 to the fourth times 1e-5; backward: the same times 1e5.
        result = amp.step(lambda x, b: tf.reduce_sum(model(x * 1e-5)) * b, x, np.float32(1e3))
        assert not result.stepped
        assert np.isfinite(result.loss)
        model.get_layer("rnn").cell.recurrent_kernel.assign(tf.eye(4))
        again = amp.step(lambda x, b: tf.reduce_sum(model(x * 1e-5)) * b, x, np.float32(1.0))
        assert again.stepped


def test_eager_variable_keeps_what_it_holds():
    """An eager output that shares its memory with an input is handed on, not stored."""
    held = tf.Variable([np.inf, 1.0])
    with emulated_ascend():
        tf.reshape(held, (2, 1))
        tf.identity(held)
        assert (held * 1.0).numpy().tolist() == [np.finfo("f4").max, 1.0]
    assert np.isinf(held.numpy()[0])


@pytest.mark.parametrize("eager", [False, True])
def test_fit_on_a_saturating_device(eager):
    policy = mp.Policy.named("mixed_float16").with_loss_scale("static(1024, on_collapse=ignore)")
    with emulated_ascend():
        for detector, skipped in (("values", 0), ("auto", 2)):
            model = net()
            amp = mp.prepare(model, sgd(), policy, detector=detector)
            model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY, run_eagerly=eager)
            for x in (X, BIG, BIG, X):
                before = values(model)
                model.fit(x, Y, batch_size=32, verbose=0)
                assert same(before, values(model)) == (x is BIG and detector == "auto")
            assert amp.state.skipped_steps == skipped


def test_judging_is_left_alone():
    """A huge finite gradient has an infinite norm: no overflow of the device."""
    with emulated_ascend() as device:
        model = net()
        policy = mp.Policy().with_loss_scale("static(1)")
        amp = mp.prepare(model, sgd(rate=1e-30), policy)
        loss_fn = loss_of(model)
        result = amp.step(lambda x, y: loss_fn(x, y) * 1e30, X, Y)
        assert result.stepped
        assert np.isinf(result.grad_norm)
        assert not device.overflowed


def test_status_register_is_not_there_without_a_device():
    with pytest.raises(mp.PolicyError, match="`detector` must be one of 'auto', 'values'"):
        mp.prepare(net(), sgd(), SCALED, detector="status_register")
    assert mp.load_backend("tensorflow").capabilities().overflow == "values"
    with emulated_ascend():
        assert mp.load_backend("tensorflow").capabilities().overflow == "status_register"
