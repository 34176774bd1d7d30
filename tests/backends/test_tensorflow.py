"""What only tf.keras can get wrong: native defects beside ours, fit, saving, storage, layouts."""

from __future__ import annotations

import subprocess
import sys

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
from mpcore.backend.driver import OPTIMIZERS  # noqa: E402
from mpcore.checkpoint import layer_weights  # noqa: E402
from mpcore.numerics.dtypes import round_to  # noqa: E402
from mpcore_tensorflow import TensorflowBackend, TransactionalOptimizer  # noqa: E402
from mpcore_tensorflow.layers import walk  # noqa: E402
from mpcore_tensorflow.storage import set_storage  # noqa: E402

layers = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 8)).astype("f4")
Y = RNG.integers(0, 4, 32).astype("i4")
BIG = X * np.float32(1e6)  # finite in float32, infinite in float16
DYNAMIC = "float32, loss_scale=dynamic(init_scale=1024, growth_interval=4)"
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def net(dtype=None):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(16, name="fc1", dtype=dtype),
            layers.BatchNormalization(name="bn", dtype=dtype),
            layers.ReLU(name="act", dtype=dtype),
            layers.Dense(4, name="fc2", dtype=dtype),
        ]
    )


def loss_of(model):
    return lambda x, y: CROSS_ENTROPY(y, model(x, training=True))


def values(*owners):
    return [v.numpy().copy() for owner in owners for v in owner.variables]


def same(before, after):
    return all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def fitted(policy, x, y=None, *, optimizer=None, model=None, **options):
    model = model or net()
    amp = mp.prepare(model, optimizer or keras.optimizers.SGD(0.1, momentum=0.9), policy)
    model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY, **options)
    y = np.resize(Y, len(x)) if y is None else y
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return model, amp


def output_dtypes(model, x):
    """Return what each leaf handed on in one call, by path."""
    seen = {}
    for entry in walk(model):
        if entry.category != "container":

            def call(*args, original=entry.layer.call, path=entry.path, **kwargs):
                outputs = original(*args, **kwargs)
                seen[path] = outputs.dtype.name
                return outputs

            vars(entry.layer)["call"] = call  # past the guard: a look, no change
    outputs = model(x)
    return seen, outputs


# --- native defects, and ours beside them


def test_native_skipped_step_destroys_batch_norm_and_ours_does_not():
    """F1: the layer before overflows in float16; natively only the weights are kept."""
    native = net("mixed_float16")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    native.compile(optimizer=optimizer, loss=CROSS_ENTROPY)
    native.fit(BIG, Y, batch_size=32, verbose=0)
    assert not np.isfinite(native.get_layer("bn").moving_mean.numpy()).any()

    model = net()
    before = values(model)
    model, amp = fitted("mixed_float16", BIG, model=model)
    assert amp.state.skipped_steps == 4
    assert same(before, values(model))


@pytest.mark.filterwarnings("ignore:the model of this optimizer is not prepared")  # there is none
def test_native_scale_dies_and_ours_stays_in_its_bounds():
    """F3 and F4: natively 0 writes NaN into the weights, and inf never comes back."""
    for start, grad, end in ((2.0**-148, np.inf, 0.0), (2.0**127, 0.0, np.inf)):
        weight = keras.Variable([1.0])
        native = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=start, dynamic_growth_steps=1
        )
        native.build([weight])
        for _ in range(2):
            native.apply([tf.constant([grad], tf.float32)], [weight])
        assert native.dynamic_scale.numpy() == end

        rule = mp.LossScale(init_scale=2.0, growth_interval=1, min_scale=1.0, max_scale=4.0)
        ours = TransactionalOptimizer(keras.optimizers.SGD(1.0), rule)
        ours.build([weight])
        for _ in range(3):
            ours.apply([tf.constant([grad], tf.float32)], [weight])
        assert ours.state.scale == (4.0 if grad == 0 else 1.0)
        ours.apply([tf.constant([1.0])], [weight])
        assert np.isfinite(weight.numpy()).all()


def test_native_compile_forgets_to_scale_mixed_layers_and_ours_scales():
    native = net("mixed_float16")  # the model itself stays float32, and only that is asked
    native.compile(optimizer=keras.optimizers.SGD(), loss=CROSS_ENTROPY)
    assert not isinstance(native.optimizer, keras.optimizers.LossScaleOptimizer)
    model, amp = fitted("mixed_float16", X)
    assert model.optimizer is amp.optimizer
    assert amp.scale == 2.0**16


def test_compile_adds_no_scaler_behind_our_back():
    for policy in ("mixed_float16", "model_float16"):
        model = net("mixed_float16")
        model.dtype_policy = "mixed_float16"
        amp = mp.prepare(model, keras.optimizers.SGD(), policy)
        assert model.dtype_policy.name != "mixed_float16"
        model.compile(optimizer=amp.optimizer, loss="mse")
        assert model.optimizer is amp.optimizer
        assert type(amp.optimizer.inner_optimizer) is keras.optimizers.SGD


@pytest.mark.slow
def test_default_trajectory_and_weights_are_keras_own():
    """With equal constants and no overflow in the buffers, bit for bit."""
    native = net("mixed_bfloat16")
    scaler = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=64.0, dynamic_growth_steps=3
    )
    native.compile(optimizer=scaler, loss=CROSS_ENTROPY)
    native.fit(np.tile(X, (4, 1)), np.tile(Y, 4), batch_size=8, shuffle=False, verbose=0)
    policy = "mixed_bfloat16, loss_scale=dynamic(init_scale=64, growth_interval=3)"
    model, amp = fitted(policy, np.tile(X, (4, 1)), optimizer=keras.optimizers.Adam(0.01))
    assert amp.scale == scaler.dynamic_scale.numpy() == 64.0 * 2**5
    for ours, theirs in zip(model.variables, native.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)


# --- fit


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"steps_per_execution": 4}, id="several-steps"),
        pytest.param({"run_eagerly": True}, id="eager"),
        pytest.param({"jit_compile": False}, id="no-xla"),
    ],
)
def test_fit_is_transactional(options):
    x = np.concatenate([X[:8], BIG[:8], BIG[:8], X[8:16]])
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    model, amp = fitted("mixed_float16", x, optimizer=keras.optimizers.SGD(rate), **options)
    clean, other = fitted(
        "mixed_float16, loss_scale=dynamic(init_scale=16384)",
        np.concatenate([X[:8], X[8:16]]),
        np.concatenate([Y[:8], Y[24:]]),
        optimizer=keras.optimizers.SGD(rate),
        **options,
    )
    assert amp.state == mp.LossScaleState(2.0**14, 1, 2)
    assert amp.optimizer.iterations.numpy() == other.optimizer.iterations.numpy() == 2
    assert float(amp.optimizer.learning_rate) == pytest.approx(0.025)
    for a, b in zip(model.variables, clean.variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-3, atol=2e-4)  # 2 ulp of float16
    bn = model.get_layer("bn")
    assert np.isfinite(bn.moving_mean.numpy()).all()


def test_fit_equals_step():
    model, amp = fitted(DYNAMIC, np.concatenate([X, np.full_like(X, 3e38)]))
    other = net()
    stepped = mp.prepare(other, keras.optimizers.SGD(0.1, momentum=0.9), DYNAMIC)
    for start in (0, 8, 16, 24):
        stepped.step(loss_of(other), X[start : start + 8], np.resize(Y, 64)[start : start + 8])
    assert amp.state.skipped_steps == 4
    assert amp.state.good_steps == stepped.state.good_steps == 0
    mine, theirs = (
        values(model, amp.optimizer.inner_optimizer),
        values(other, stepped.optimizer.inner_optimizer),
    )
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)  # the losses sum in another order


def test_weights_loaded_between_fits_are_not_undone():
    model, amp = fitted("mixed_float16", X)
    loaded = [np.full_like(w, 0.5) for w in model.get_weights()]
    for start in (False, True):
        model.run_eagerly = start
        model.set_weights(loaded)
        model.fit(BIG, Y, batch_size=8, verbose=0)
        assert same(loaded, model.get_weights())
    assert amp.state.skipped_steps == 8


def test_forward_pass_outside_the_step_is_not_undone():
    model, _ = fitted("mixed_float16", X, run_eagerly=True)
    model(X, training=True)  # re-estimates the statistics
    before = values(model)
    model.fit(BIG, Y, batch_size=32, verbose=0)
    assert same(before, values(model))


def test_step_without_a_forward_pass_in_its_trace_says_so():
    model, amp = fitted("float32", X)
    grads = [tf.ones(v.shape) for v in model.trainable_variables]
    with pytest.warns(mp.MpcoreWarning, match="no training-mode call of the model in its own"):
        amp.optimizer.apply(grads, model.trainable_variables)


@pytest.mark.slow
def test_inner_clipping_and_accumulation_see_true_gradients():
    model = net()
    start = [v.numpy() for v in model.trainable_variables]
    optimizer = keras.optimizers.SGD(1.0, global_clipnorm=0.25)
    amp = mp.prepare(model, optimizer, "float32, loss_scale=static(4096)")
    result = amp.step(loss_of(model), X, Y)
    moved = [a - v.numpy() for a, v in zip(start, model.trainable_variables, strict=True)]
    norm = np.sqrt(sum(np.sum(np.square(m, dtype=np.float64)) for m in moved))
    assert norm == pytest.approx(min(0.25, result.grad_norm), rel=1e-4)

    model = net()
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    amp = mp.prepare(model, optimizer, "mixed_float16")
    before = [v.numpy() for v in model.trainable_variables]
    amp.step(loss_of(model), X, Y)
    assert same(before, [v.numpy() for v in model.trainable_variables])
    amp.step(loss_of(model), X, Y)
    assert not same(before, [v.numpy() for v in model.trainable_variables])


# --- saving


@pytest.mark.slow
def test_scale_and_masters_survive_saving(tmp_path):
    x = np.concatenate([BIG[:8], X[:8]])
    for policy in ("mixed_float16", "model_float16"):
        model, amp = fitted(policy, x)
        path = tmp_path / f"{policy}.keras"
        model.save(path)
        loaded = keras.saving.load_model(path)
        assert isinstance(loaded.optimizer, TransactionalOptimizer)
        again = mp.prepare(loaded, loaded.optimizer, policy)
        assert again.state == amp.state == mp.LossScaleState(2.0**15, 1, 1)
        assert type(again.optimizer.inner_optimizer) is keras.optimizers.SGD
        assert again.optimizer.iterations.numpy() == 1
        pairs = zip(amp.optimizer.masters.values(), again.optimizer.masters.values(), strict=True)
        assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in pairs)
        results = [a.step(loss_of(m), X, Y) for a, m in ((amp, model), (again, loaded))]
        assert results[0].loss == results[1].loss
        assert same(model.get_weights(), loaded.get_weights())
        assert not again.step(loss_of(loaded), BIG, Y).stepped


def test_loaded_model_says_that_it_is_not_prepared(tmp_path):
    model, _ = fitted("mixed_float16", X)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    with pytest.warns(
        mp.MpcoreWarning, match=r"is not prepared.*mpcore\.prepare\(model, model\.op"
    ):
        loaded.fit(X, Y, verbose=0)


def test_config_round_trips():
    rule = mp.LossScale(init_scale=8.0, min_scale=0.5)
    optimizer = TransactionalOptimizer(keras.optimizers.Adam(0.5), rule, "copy")
    back = TransactionalOptimizer.from_config(optimizer.get_config())
    assert (back.rule, back.master) == (rule, "copy")
    assert float(back.inner_optimizer.learning_rate.numpy()) == 0.5


def test_policy_can_be_changed_with_the_optimizer_of_before():
    model, amp = fitted("mixed_float16", BIG)
    again = mp.prepare(model, amp.optimizer, mp.Policy.named("mixed_bfloat16").full("fc2"))
    seen, _ = output_dtypes(model, X)
    assert seen == {"fc1": "bfloat16", "bn": "bfloat16", "act": "bfloat16", "fc2": "float32"}
    assert again.state == mp.LossScaleState(1.0, 0, 0)  # another rule: a fresh state
    assert again.step(loss_of(model), X, Y).stepped


# --- the plan on real layers


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed = layers.Embedding(10, 8)
        self.blocks = [layers.Dense(8) for _ in range(2)]
        self.attention = layers.MultiHeadAttention(2, 4)
        self.inner = keras.Sequential([layers.Input((None, 8)), layers.LayerNormalization()])
        self.join = layers.Concatenate()
        self.noise = layers.GaussianNoise(0.1)
        self.head = layers.Dense(3)

    def call(self, tokens):
        h = self.embed(tokens)
        for block in self.blocks:
            h = h + block(h)
        h = self.join([self.attention(h, h), self.inner(h)])
        return self.head(self.noise(h, training=True))


@pytest.mark.slow
def test_subclassed_model_follows_the_plan():
    model = Subclassed()
    tokens = RNG.integers(0, 10, (2, 5))
    model(tokens)
    names = [entry.path for entry in walk(model)]
    assert names[:4] == ["", "embed", "blocks.0", "blocks.1"]
    assert names[4:6] == ["attention", "inner"]
    assert names[-3:] == ["join", "noise", "head"]
    amp = mp.prepare(model, keras.optimizers.Adam(), mp.Policy.named("mixed_bfloat16").full("head"))
    seen, outputs = output_dtypes(model, tokens)
    assert {path for path, dtype in seen.items() if dtype == "float32"} == {"head"}
    assert outputs.dtype == tf.float32
    assert {v.dtype for v in model.variables if "seed" not in v.path} == {"float32"}
    assert amp.step(lambda t: tf.reduce_mean(model(t) ** 2), tokens).stepped


def test_functional_model_in_a_model_casts_nothing_in_between():
    i = keras.Input((8,))
    inner = keras.Model(i, layers.Add(name="sum")([i, layers.Dense(8, name="a")(i)]), name="inner")
    j = keras.Input((8,))
    h = inner(layers.Dense(8, name="first")(j))
    h = layers.Concatenate(name="join")([h, layers.Activation("relu", name="act")(h)])
    h = layers.Dense(8, name="last")(h) * 2.0
    model = keras.Model(j, layers.Softmax(name="soft")(h))
    policy = mp.Policy.named("mixed_float16")
    mp.prepare(model, keras.optimizers.SGD(), policy)
    seen, outputs = output_dtypes(model, X)
    assert seen.pop("soft") == "float32"
    assert set(seen) == {"first", "inner.a", "inner.sum", "join", "act", "last"}
    assert set(seen.values()) == {"float16"}
    assert outputs.dtype == tf.float32
    assert model(X.astype("f8")).dtype == tf.float32


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16"])
def test_activation_with_weights_hands_on_what_comes_in(policy):
    model = keras.Sequential([layers.Input((8,)), layers.Dense(4, name="a"), layers.PReLU()])
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), policy)
    assert amp.step(lambda x: tf.reduce_mean(model(x) ** 2), X).stepped
    seen, _ = output_dtypes(model, X)
    assert set(seen.values()) == {"bfloat16"}


def test_policy_map_of_the_user_is_kept_but_for_rules():
    dtypes = keras.dtype_policies.DTypePolicyMap("mixed_float16")
    dtypes[".*/fc2"] = keras.DTypePolicy("float32")
    model = net(dtypes)
    policy = mp.Policy.named("mixed_bfloat16").full("fc1")
    assert mp.explain(model, policy)["fc2"].rule == "set in the model: float32"
    amp = mp.prepare(model, keras.optimizers.SGD(), policy)
    seen, _ = output_dtypes(model, X)
    assert seen == {"fc1": "float32", "bn": "bfloat16", "act": "bfloat16", "fc2": "float32"}
    mp.prepare(model, amp.optimizer, policy.lower("fc2"))
    seen, _ = output_dtypes(model, X)
    assert seen == {"fc1": "float32", "bn": "bfloat16", "act": "bfloat16", "fc2": "bfloat16"}
    assert list(dtypes) == [".*/fc2"]  # nothing was written into it


@pytest.mark.slow
def test_exported_model_keeps_the_policy(tmp_path):
    model, _ = fitted("model_bfloat16", X)
    model.export(tmp_path / "saved", verbose=False)
    served = tf.saved_model.load(tmp_path / "saved")
    outputs = served.serve(X)
    assert outputs.dtype == tf.float32
    np.testing.assert_allclose(outputs, model(X), atol=2e-2)  # 2 ulp of bfloat16 at 1


def test_averages_are_written_to_masters_and_weights():
    model, amp = fitted("model_bfloat16", X, optimizer=keras.optimizers.SGD(0.1, use_ema=True))
    kernel = model.get_layer("fc1").kernel
    average = amp.optimizer.inner_optimizer._model_variables_moving_average[0]
    np.testing.assert_array_equal(amp.optimizer.target(kernel).numpy(), average.numpy())
    np.testing.assert_array_equal(
        np.asarray(kernel.numpy(), "f4"), round_to(average.numpy(), "bfloat16")
    )


def test_full_layer_computes_in_float32_whatever_arrives():
    model = keras.Sequential(
        [layers.Input((4,)), layers.Dense(4, name="fc"), layers.UnitNormalization(name="unit")]
    )
    native = layers.UnitNormalization(dtype="mixed_float16")
    assert not native(np.full((1, 4), 300.0)).numpy().any()  # squares overflow, all is lost
    mp.prepare(model, keras.optimizers.SGD(), "mixed_float16")
    model.get_layer("fc").set_weights([np.eye(4), np.zeros(4)])
    np.testing.assert_allclose(model(np.full((1, 4), 300.0)), np.full((1, 4), 0.5), rtol=1e-3)


def test_model_built_under_a_low_global_policy_gets_float32_inputs():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential([layers.Dense(4)])
        model.build((None, 8))
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.inputs[0].dtype == "float16"
    mp.prepare(model, keras.optimizers.SGD(), "float32")
    model.set_weights([np.ones((8, 4)), np.zeros(4)])
    np.testing.assert_allclose(model(np.full((1, 8), 1.0001, "f4")), 8.0008, rtol=1e-6)


def test_cached_train_function_is_traced_again():
    model = net()
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(optimizer=optimizer, loss=CROSS_ENTROPY)
    model.fit(X, Y, verbose=0)
    assert model.train_function is not None
    amp = mp.prepare(model, optimizer, "mixed_float16")
    assert model.train_function is None
    model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
    model.fit(BIG, Y, batch_size=32, verbose=0)
    assert amp.state.skipped_steps == 1


def test_masks_pass_through_casts():
    i = keras.Input((5,), dtype="int32")
    h = layers.Embedding(10, 4, mask_zero=True)(i)
    model = keras.Model(i, layers.LayerNormalization()(h))
    mp.prepare(model, keras.optimizers.SGD(), "mixed_bfloat16")
    outputs = model(np.array([[1, 2, 0, 0, 0]]))
    assert outputs.dtype == tf.float32
    assert outputs._keras_mask.numpy().tolist() == [[True, True, False, False, False]]


# --- parameters in 16 bits


def test_masters_hold_what_16_bits_lose():
    model = net()
    variables = list(model.trainable_variables)
    exact = [v.numpy() for v in variables]
    optimizer = keras.optimizers.SGD(1e-4)
    amp = mp.prepare(model, optimizer, "model_bfloat16")
    assert all(a is b for a, b in zip(variables, model.trainable_variables, strict=True))
    kernel = model.get_layer("fc1").kernel
    assert kernel.dtype == kernel.value.dtype.name == "bfloat16"
    assert model.get_layer("bn").gamma.dtype == "float32"
    master = amp.optimizer.target(kernel)
    np.testing.assert_array_equal(master.numpy(), exact[0])  # made before the cast
    for _ in range(3):
        assert amp.step(loss_of(model), X, Y).stepped
    assert (master.numpy() != exact[0]).mean() > 0.9
    np.testing.assert_array_equal(
        np.asarray(kernel.numpy(), "f4"), round_to(master.numpy(), "bfloat16")
    )


def test_optimizer_with_slots_keeps_them_for_the_masters():
    model = net()
    optimizer = keras.optimizers.Adam(0.01)
    first = mp.prepare(model, optimizer, "float32")
    first.step(loss_of(model), X, Y)
    slots = values(optimizer)
    amp = mp.prepare(model, first.optimizer, "float32")
    assert same(slots, values(optimizer))

    model = net()
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    amp = mp.prepare(model, optimizer, "model_float16")
    assert amp.step(loss_of(model), X, Y).stepped
    assert {v.dtype for v in optimizer.variables[2:]} == {"float32"}


def test_without_masters_slots_are_low_and_old_slots_are_refused():
    policy = mp.Policy.parse("model_bfloat16, master=none")
    model = net()
    amp = mp.prepare(model, keras.optimizers.SGD(0.1, momentum=0.9), policy)
    assert amp.step(loss_of(model), X, Y).stepped
    assert amp.optimizer.masters == {}
    assert amp.optimizer.inner_optimizer.momentums[0].dtype == "bfloat16"
    model = net()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    with pytest.raises(mp.OptimizerError, match="must be new when weights change their dtype"):
        mp.prepare(model, optimizer, policy)


def test_private_fields_of_a_variable_are_as_we_use_them():
    variable = keras.Variable([1.0, 2.0], name="v")
    assert variable._value.dtype == tf.float32
    assert variable._dtype == "float32"
    set_storage(variable, tf.constant([1.0, 2.0], tf.bfloat16))
    assert variable.dtype == variable.value.dtype.name == "bfloat16"
    variable.assign([3.0, 4.0])
    assert np.asarray(variable.numpy(), "f4").tolist() == [3.0, 4.0]


# --- gradients


def test_repeated_rows_of_a_sparse_gradient_count_as_one():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Input((4,), dtype="int32"), layers.Embedding(6, 3, name="e")])
    before = model.get_layer("e").embeddings.numpy()
    amp = mp.prepare(model, keras.optimizers.Adam(0.1), "float32, loss_scale=static(64)")
    tokens = np.array([[1, 1, 1, 2]], "i4")
    result = amp.step(lambda t: tf.reduce_sum(model(t)), tokens, keep_grads=True)
    expected = np.zeros((6, 3), "f4")
    expected[1], expected[2] = 3.0, 1.0
    np.testing.assert_array_equal(result.grads["e.embeddings"].numpy(), expected)
    assert result.grad_norm == pytest.approx(np.linalg.norm(expected))
    moved = model.get_layer("e").embeddings.numpy() - before
    np.testing.assert_allclose(moved[1:3], -0.1, rtol=1e-3)  # Adam: the sign of the sum
    assert not moved[[0, 3, 4, 5]].any()
    assert not amp.step(lambda t: tf.reduce_sum(model(t)) * np.inf, tokens).stepped


def test_missing_gradient_is_no_gradient():
    model = net()
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "mixed_float16")
    fc1 = model.get_layer("fc1")
    before = model.get_layer("fc2").kernel.numpy()
    result = amp.step(
        lambda x: tf.reduce_mean(tf.cast(fc1(x), tf.float32) ** 2), X, keep_grads=True
    )
    assert result.stepped
    assert set(result.grads) == {"fc1.kernel", "fc1.bias"}
    np.testing.assert_array_equal(before, model.get_layer("fc2").kernel.numpy())
    with pytest.raises(mp.BackendError, match="`loss_fn` must depend on the trainable weights"):
        amp.step(lambda: tf.constant(1.0))


def test_loss_function_may_branch_on_tensors():
    model = net()
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "float32")

    def loss_fn(x, y):
        loss = CROSS_ENTROPY(y, model(x, training=True))
        if loss > 0:
            loss = loss * 0.0
        return loss

    assert amp.step(loss_fn, X, Y).loss == 0


def test_huge_finite_gradient_is_finite():
    """The square of 1e30 is inf in float32: a norm alone would call the step bad."""
    model = net()
    amp = mp.prepare(model, keras.optimizers.SGD(1e-30), "float32")
    loss_fn = loss_of(model)
    assert amp.step(lambda x, y: loss_fn(x, y) * 1e30, X, Y).stepped


def test_culprit_is_named_by_its_path():
    model = net()
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "float32")
    fc2 = model.get_layer("fc2")

    @tf.custom_gradient
    def spoiled(w):
        return w, lambda upstream: upstream * np.float32(np.nan)

    def loss_fn(x, y):
        h = model.get_layer("fc1")(x)
        return CROSS_ENTROPY(y, h[:, :4] + h[:, :16] @ spoiled(fc2.kernel.value))

    result = amp.step(loss_fn, X, Y)
    assert result.culprit == "fc2.kernel"
    assert "fc2.kernel" in result.reason


def test_loss_must_be_one_number():
    model = net()
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "float32")
    with pytest.raises(mp.BackendError, match=r"must return a scalar, got shape \(32, 4\)"):
        amp.step(lambda x: model(x), X)


@pytest.mark.slow
def test_new_loss_function_each_step_is_reported():
    model = net()
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "float32")
    weight = model.get_layer("fc2").bias
    for _ in range(16):
        amp.step(lambda: tf.reduce_sum(weight.value))
    with pytest.warns(mp.MpcoreWarning, match="pass the same function object each time"):
        amp.step(lambda: tf.reduce_sum(weight.value))


# --- refusals


def test_two_nested_scalers_are_refused():
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    with pytest.raises(mp.OptimizerError, match=r"two nested scalers.*inner_optimizer"):
        mp.prepare(net(), scaler, "mixed_float16")
    fixed = keras.optimizers.SGD(loss_scale_factor=8.0)
    with pytest.raises(mp.OptimizerError, match=r"two nested scalers.*loss_scale_factor=8\.0"):
        mp.prepare(net(), fixed, "mixed_float16")


def test_unbuilt_model_is_refused_with_the_way_out():
    model = keras.Sequential([layers.Dense(2)])
    with pytest.raises(mp.BackendError, match=r"must be built.*model\.build\(input_shape\)"):
        mp.prepare(model, keras.optimizers.SGD(), "float32")
    with pytest.raises(mp.BackendError, match=r"must be a keras\.Model, got Dense"):
        mp.prepare(layers.Dense(2), keras.optimizers.SGD(), "float32")


def test_capabilities_give_the_reason():
    can = TensorflowBackend().capabilities()
    assert can.by["op"].level == "absent"
    assert "takes no rules" in can.by["op"].reason
    assert {support.level for support in can.compute.values()} == {"native"}


@pytest.mark.slow
def test_backend_imports_no_other_framework():
    code = "import sys, mpcore_tensorflow; print({'torch', 'mindspore', 'jax'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


# --- comparisons


def conv_net():
    return keras.Sequential(
        [
            layers.Input((6, 5, 2)),
            layers.Conv2D(3, 3, name="conv"),
            layers.DepthwiseConv2D(2, depth_multiplier=2, name="depth"),
            layers.BatchNormalization(name="bn"),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(4, name="fc"),
        ]
    )


def test_neutral_weights_are_torch_shaped_and_round_trip():
    driver = TensorflowBackend().driver()
    driver.seed(0)
    x = RNG.normal(size=(2, 2, 6, 5)).astype("f4")
    model = driver.build(conv_net, x, "channels_first")
    weights = driver.weights(model)
    shapes = {f"{w.path}.{n}": a.shape for w in weights for n, a in w.arrays.items()}
    assert shapes["conv.weight"] == (3, 2, 3, 3)
    assert shapes["depth.weight"] == (6, 1, 2, 2)
    assert shapes["bn.running_var"] == (6,)
    assert shapes["fc.weight"] == (4, 6 * 3 * 2)
    before = model.get_weights()
    for variable in model.weights:
        variable.assign(variable.value * 0)
    driver.load_weights(model, weights)
    assert same(before, model.get_weights())


@pytest.mark.parametrize("kind", ["sequential", "subclassed", "not-from-build"])
def test_rows_after_flatten_are_in_channels_first_order(kind):
    class Plain(keras.Model):
        def __init__(self):
            super().__init__()
            self.net = conv_net()

        def call(self, x):
            return self.net(x)

    driver = TensorflowBackend().driver()
    x = RNG.normal(size=(2, 2, 6, 5)).astype("f4")
    builder = Plain if kind == "subclassed" else conv_net
    model = builder() if kind == "not-from-build" else driver.build(builder, x, "channels_first")
    inputs = driver.batch(x, np.zeros(2, "i4"), "channels_first")[0]
    sequential = model.net if kind == "subclassed" else model
    h = inputs
    for layer in sequential.layers[:4]:
        h = layer(h)
    channels_first = h.numpy().transpose(0, 3, 1, 2).reshape(2, -1)
    fc = driver.weights(model)[-1].arrays
    np.testing.assert_allclose(
        channels_first @ fc["weight"].T + fc["bias"], model(inputs), rtol=1e-4, atol=1e-5
    )


def test_attention_has_the_layout_of_torch():
    i = keras.Input((5, 8))
    attention = layers.MultiHeadAttention(2, 4, name="att")
    model = keras.Model(i, attention(i, i))
    driver = TensorflowBackend().driver()
    (weights,) = driver.weights(model)
    assert {name: array.shape for name, array in weights.arrays.items()} == {
        "in_proj_weight": (24, 8),
        "in_proj_bias": (24,),
        "out_proj.weight": (8, 8),
        "out_proj.bias": (8,),
    }
    before = model.get_weights()
    driver.load_weights(model, [weights])
    assert same(before, model.get_weights())


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, "mixed_bfloat16") for name in OPTIMIZERS),
        ("sgd", "model_bfloat16"),
        ("adam", "model_bfloat16"),
    ],
)
def test_training_goes_on_from_neutral_state(name, policy):
    spec = mp.OptimizerSpec(name, learning_rate=0.05)
    driver = TensorflowBackend().driver()

    def start():
        model = net()
        amp = mp.prepare(model, driver.optimizer(spec, model), policy)
        return model, amp, driver.loss("cross_entropy", model)

    model, amp, loss_fn = start()
    for _ in range(3):
        amp.step(loss_fn, X, Y)
    other, resumed, other_loss = start()
    driver.load_weights(other, driver.weights(model, amp), resumed)
    driver.load_slots(other, resumed, driver.slots(model, amp))
    a, b = amp.step(loss_fn, X, Y), resumed.step(other_loss, X, Y)
    assert a.loss == b.loss
    for ours, theirs in zip(
        driver.weights(model, amp), driver.weights(other, resumed), strict=True
    ):
        for key, array in ours.arrays.items():
            np.testing.assert_allclose(array, theirs.arrays[key], rtol=1e-6, atol=1e-8)
    assert driver.predict(model, amp, X, "").shape == (32, 4)
    driver.load_slots(other, resumed, layer_weights.Slots(0))
    assert not any(v.numpy().any() for v in resumed.optimizer.inner_optimizer.variables[2:])


@pytest.mark.parametrize("make", [layers.LSTM, layers.GRU])
def test_recurrent_gates_are_in_the_order_of_torch(make):
    model = keras.Sequential([layers.Input((5, 8)), make(3, name="rnn")])
    driver, cell = TensorflowBackend().driver(), model.get_layer("rnn").cell
    gates = 4 if make is layers.LSTM else 3
    order = [0, 1, 2, 3] if make is layers.LSTM else [1, 0, 2]
    for variable in cell.weights:
        variable.assign(RNG.normal(size=variable.shape))
    (rnn,) = driver.weights(model)
    assert {name: a.shape for name, a in rnn.arrays.items()} == {
        "weight_ih_l0": (3 * gates, 8),
        "weight_hh_l0": (3 * gates, 3),
        "bias_ih_l0": (3 * gates,),
        "bias_hh_l0": (3 * gates,),
    }
    blocks = np.split(cell.kernel.numpy(), gates, axis=1)
    expected = np.concatenate([blocks[gate].T for gate in order])
    np.testing.assert_array_equal(rnn.arrays["weight_ih_l0"], expected)
    before = [v.numpy() for v in cell.weights]
    driver.load_weights(model, [rnn])
    for variable, value in zip(cell.weights, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    rnn.arrays["bias_hh_l0"] += 1  # torch adds the two
    driver.load_weights(model, [rnn])
    moved = cell.bias.numpy() - before[-1]
    np.testing.assert_allclose(moved if make is layers.LSTM else moved[1], 1, rtol=1e-6)
    grads = driver.gradients(model, {"rnn.lstm_cell.bias": tf.ones(12)})[0].arrays
    assert grads["bias_hh_l0"].all() == grads["bias_ih_l0"].all() == (make is layers.LSTM)


def test_layers_without_a_neutral_layout_are_refused_by_comparisons():
    cells = [layers.LSTMCell(3) for _ in range(2)]
    rnn = layers.RNN(layers.StackedRNNCells(cells), name="rnn")
    model = keras.Sequential([layers.Input((5, 8)), rnn])
    with pytest.raises(mp.ExperimentError, match=r"'rnn'.*cannot be compared yet"):
        TensorflowBackend().driver().weights(model)
    amp = mp.prepare(model, keras.optimizers.SGD(), "mixed_bfloat16")
    assert amp.step(lambda x: tf.reduce_mean(model(x) ** 2), RNG.normal(size=(2, 5, 8))).stepped
