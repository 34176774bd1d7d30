"""Defects of Keras' own stack and the pains of its users, by id, and ours beside each.

F1, F3, F4 and P46 have more of their tests in test_tensorflow.py, P17 in tests/ranks.
"""

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

layers = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 8)).astype("f4")
Y = RNG.integers(0, 4, 32).astype("i4")
BIG = X * np.float32(1e6)  # finite in float32, infinite in float16
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def net(dtype=None, norm=True):
    keras.utils.set_random_seed(0)
    hidden = [layers.Dense(16, name="fc1", dtype=dtype)]
    hidden += [layers.BatchNormalization(name="bn", dtype=dtype)] if norm else []
    last = layers.Dense(4, name="fc2", dtype=dtype)
    return keras.Sequential([layers.Input((8,)), *hidden, layers.ReLU(dtype=dtype), last])


def native_step(model, scaler, after=lambda: None):
    """Return a step as the guide of Keras writes it."""
    scaler.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = CROSS_ENTROPY(y, tf.cast(model(x, training=True), tf.float32))
            scaled = scaler.scale_loss(loss)
        grads = tape.gradient(scaled, model.trainable_variables)
        done = scaler.apply(grads, model.trainable_variables)
        after()
        assert done is None
        return loss

    return step


def native_scaler(inner=None, **options):
    return keras.optimizers.LossScaleOptimizer(inner or keras.optimizers.SGD(0.1), **options)


def loss_of(model, boost=1.0):
    return lambda x, y: CROSS_ENTROPY(y, model(x, training=True)) * np.float32(boost)


def finite(*owners):
    return all(np.isfinite(np.asarray(v.numpy(), "f4")).all() for o in owners for v in o.variables)


def values(*owners):
    return [np.asarray(v.numpy(), "f4") for owner in owners for v in owner.variables]


def same(before, after):
    return all(map(np.array_equal, before, after)) and len(before) == len(after)


def dynamic(**fields):
    return mp.Policy.named("mixed_float16").with_loss_scale(mp.LossScale.of(**fields))


# --- the scale


def test_f3_scale_of_zero():
    """166 overflows: natively 0, and then NaN is written; ours stops at its floor."""
    model, scaler = net("mixed_float16", norm=False), native_scaler(initial_scale=2.0**-120)
    step = native_step(model, scaler)
    for _ in range(35):
        step(BIG, Y)
    assert scaler.dynamic_scale.numpy() == 0
    step(X, Y)  # the loss times 0, divided by 0
    scaler.apply([tf.zeros(v.shape) for v in model.trainable_variables], model.trainable_variables)
    assert not finite(model)

    model = net(norm=False)
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), dynamic(patience=200))
    loss_fn = loss_of(model)
    for _ in range(166):
        amp.step(loss_fn, BIG, Y)
    assert amp.scale == 1
    assert amp.step(loss_fn, X, Y).stepped
    assert finite(model)


def test_f4_p6_scale_grows_for_ever():
    """Natively to inf, which is never left; ours to its cap."""
    model, scaler = net(norm=False), native_scaler(initial_scale=2.0**100, dynamic_growth_steps=1)
    step = native_step(model, scaler)
    scaler.dynamic_scale.assign(2.0**127)
    zero = [tf.zeros(v.shape) for v in model.trainable_variables]
    scaler.apply(zero, model.trainable_variables)
    assert np.isinf(scaler.dynamic_scale.numpy())
    before = values(model)
    for _ in range(3):
        step(X, Y)
    assert same(before, values(model))
    assert np.isinf(scaler.dynamic_scale.numpy())

    rule = mp.LossScale(growth_interval=1, max_scale=2.0**20)
    model = net(norm=False)
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), mp.Policy().with_loss_scale(rule))
    loss_fn = loss_of(model)
    assert all(amp.step(loss_fn, X, Y).stepped for _ in range(40))
    assert amp.scale == 2.0**20


def test_p5_floor_below_one():
    """Gradients that need 2**-6: the machine of Keras 2 stays at 1 and never moves."""
    boost = 2.0**24
    ends = {}
    for name, rule in {
        "tf_keras": mp.LossScale.named("tf_keras", on_collapse="ignore"),
        "ours": mp.LossScale(min_scale=2.0**-20, on_collapse="ignore"),
    }.items():
        model = net(norm=False)
        policy = mp.Policy.named("mixed_float16").with_loss_scale(rule)
        amp = mp.prepare(model, keras.optimizers.SGD(0.1 / boost), policy)
        loss_fn = loss_of(model, boost)
        results = [amp.step(loss_fn, X, Y) for _ in range(60)]
        ends[name] = (amp.scale, sum(r.stepped for r in results), results[-1].loss / boost)
    assert ends["tf_keras"][:2] == (1.0, 0)
    scale, stepped, loss = ends["ours"]
    assert scale < 2.0**-5
    assert stepped > 20
    assert loss < ends["tf_keras"][2]


def test_p15_bfloat16_needs_no_scale():
    assert mp.prepare(net(), keras.optimizers.SGD(), "mixed_bfloat16").scale == 1
    amp = mp.prepare(net(), keras.optimizers.SGD(), "float32")
    assert amp.policy.scaling.kind == "none"
    model = net()
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "mixed_bfloat16")
    loss_fn = loss_of(model)
    results = [amp.step(loss_fn, X, Y) for _ in range(3)]
    assert [(r.stepped, r.scale, r.next_scale) for r in results] == [(True, 1.0, 1.0)] * 3
    # Keras' own follows whoever wraps: the same bfloat16 layers run with 2**15.
    assert native_scaler().initial_scale == 2.0**15


# --- what a skipped step leaves behind


def test_f1_p3_statistics_and_averages_of_a_skipped_step():
    """Natively running statistics become NaN and an average of the weights moves on."""
    model, scaler = net("mixed_float16"), native_scaler()
    moved = tf.Variable(0)
    step = native_step(model, scaler, lambda: moved.assign_add(1))
    step(BIG, Y)
    assert not finite(model.get_layer("bn"))
    assert moved.numpy() == 1

    model = net()
    before = values(model)
    moved = tf.Variable(0)
    optimizer = keras.optimizers.SGD(0.1)
    policy = "mixed_float16"
    amp = mp.prepare(model, optimizer, policy, after_step=[lambda: moved.assign_add(1)])
    assert not amp.step(loss_of(model), BIG, Y).stepped
    assert same(before, values(model))
    assert moved.numpy() == 0


def test_f6_p2_skips_are_told_and_counted():
    """Natively ``apply`` returns None in either case, and no variable counts skips."""
    model, scaler = net("mixed_float16", norm=False), native_scaler()
    step = native_step(model, scaler)  # asserts the None
    for x in (X, BIG, BIG, X):
        step(x, Y)
    own = [v.name for v in scaler.variables if v not in scaler.inner_optimizer.variables]
    assert not any("skip" in name for name in own)

    model = net()
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "mixed_float16")
    loss_fn = loss_of(model)
    bad = RNG.random(40) < 0.3
    results = [amp.step(loss_fn, BIG if b else X, Y) for b in bad]
    assert [not r.stepped for r in results] == bad.tolist()
    assert amp.state.skipped_steps == bad.sum()
    skipped = next(r for r in results if not r.stepped)
    assert (skipped.next_scale, skipped.culprit) == (skipped.scale / 2, "fc1.kernel")
    assert "forward pass" in skipped.reason


@pytest.mark.parametrize("way", ["step", "fit"])
def test_f8_p1_schedule_follows_real_steps(way):
    """100 steps, 10 overflows: 90; as Keras 3. With Keras 2's machine all 100 count."""
    for preset, expected in ((None, 90), ("tf_keras", 100)):
        rule = mp.LossScale() if preset is None else mp.LossScale.named(preset)
        rate = keras.optimizers.schedules.PolynomialDecay(1e-3, 100, 1e-4)
        model = net()
        policy = mp.Policy.named("mixed_float16").with_loss_scale(rule)
        amp = mp.prepare(model, keras.optimizers.SGD(rate), policy)
        batches = [BIG[:8] if i % 10 == 3 else X[:8] for i in range(100)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if way == "step":
                loss_fn = loss_of(model)
                for x in batches:
                    amp.step(loss_fn, x, Y[:8])
            else:
                model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
                data = np.concatenate(batches), np.tile(Y[:8], 100)
                model.fit(*data, batch_size=8, shuffle=False, verbose=0)
        assert amp.state.skipped_steps == 10
        assert amp.optimizer.iterations.numpy() == expected
        assert float(amp.optimizer.learning_rate) == pytest.approx(
            1e-3 - 9e-4 * expected / 100, rel=1e-5
        )


def test_p18_overflow_never_updates():
    """Keras' compile adds no scaler to mixed layers, and the update of inf is taken."""
    native = net("mixed_float16", norm=False)
    native.compile(optimizer=keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY)
    native.fit(BIG, Y, batch_size=32, verbose=0)
    assert not finite(native)

    for scale in ("auto", "none", "static(8)", "dynamic"):
        model = net(norm=False)
        before = values(model)
        policy = mp.Policy.named("mixed_float16").with_loss_scale(scale)
        amp = mp.prepare(model, keras.optimizers.SGD(0.1), policy)
        assert not amp.step(loss_of(model), BIG, Y).stepped
        assert same(before, values(model))


# --- gradients


def test_p10_no_gradient_is_finite():
    model = net()
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        keras.optimizers.SGD(0.1).apply([None], [keras.Variable([1.0])])
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "mixed_float16")
    with pytest.raises(mp.BackendError, match="`loss_fn` must depend on the trainable weights"):
        amp.step(lambda x: tf.reduce_mean(x), X)
    model.trainable = False
    before = values(model)
    frozen = amp.step(lambda x, y: CROSS_ENTROPY(y, model(x)), X, Y)
    assert frozen.stepped
    assert same(before, values(model))


def test_p12_clip_before_unscale():
    """Natively a clip between ``gradient`` and ``apply`` sees the scaled gradients."""
    scaler = native_scaler(keras.optimizers.SGD(1.0), initial_scale=2.0**15)
    weight = keras.Variable([3.0, 4.0])
    scaler.build([weight])
    clipped, _ = tf.clip_by_global_norm([weight.value * scaler.scale_loss(1.0)], 1.0)
    scaler.apply(clipped, [weight])
    assert np.abs(weight.numpy() - [3.0, 4.0]).max() < 1e-4  # a step of 1 / 2**15, not of 1

    norms = {}
    for policy in ("float32", "mixed_float16"):
        model = net()
        start = [v.numpy() for v in model.trainable_variables]
        amp = mp.prepare(model, keras.optimizers.SGD(1.0), policy)
        norms[policy] = amp.step(loss_of(model), X, Y, clip_norm=0.25).grad_norm
        moved = [a - v.numpy() for a, v in zip(start, model.trainable_variables, strict=True)]
        length = np.sqrt(sum(np.square(m, dtype=np.float64).sum() for m in moved))
        assert length == pytest.approx(0.25, rel=1e-4)
    assert norms["mixed_float16"] == pytest.approx(norms["float32"], rel=1e-3)


def test_p14_bad_micro_batch():
    """Natively the sum holds its inf, and the whole window is lost."""
    model = net("mixed_float16", norm=False)
    x = X.copy()
    x[8:16] *= np.float32(1e6)
    sums = None
    for part in range(4):
        rows = slice(part * 8, part * 8 + 8)
        with tf.GradientTape() as tape:
            loss = CROSS_ENTROPY(Y[rows], tf.cast(model(x[rows], training=True), tf.float32))
        grads = tape.gradient(loss, model.trainable_variables)
        sums = grads if sums is None else [a + b for a, b in zip(sums, grads, strict=True)]
    assert not np.isfinite(sums[0].numpy()).all()

    ends = []
    for rows, count in ((np.arange(32), 4), (np.r_[0:8, 16:32], 3)):
        model = net()
        policy = mp.Policy.named("mixed_float16").with_loss_scale("static(1024)")
        optimizer = keras.optimizers.Adam(0.01)
        amp = mp.prepare(model, optimizer, policy, on_bad_micro_batch="drop")
        result = amp.step(loss_of(model), x[rows], Y[rows], micro_batches=count)
        assert (result.stepped, result.dropped) == (True, int(count == 4))
        ends.append(values(model, optimizer))
    assert same(*ends)


class Critic(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(64, activation="softplus", name="hidden")
        self.out = layers.Dense(1, name="out")

    def call(self, x):
        return self.out(self.hidden(x))


def critic_step(policy, scale, penalty=None):
    """Return loss and gradients of one WGAN-GP critic step."""
    keras.utils.set_random_seed(0)
    critic = Critic()
    critic(X)
    policy = mp.Policy.named(policy).with_loss_scale(scale)
    amp = mp.prepare(critic, keras.optimizers.Adam(1e-3), policy)
    penalty = penalty or amp.gradient

    def loss_fn(real, fake):
        mixed = 0.3 * real + 0.7 * fake
        lengths = tf.norm(penalty(critic, mixed), axis=1)
        gap = tf.reduce_mean(critic(fake)) - tf.reduce_mean(critic(real))
        return gap + 10.0 * tf.reduce_mean((lengths - 1.0) ** 2)

    result = amp.step(loss_fn, X, X[::-1] * 0.5, keep_grads=True)
    return result, {name: grad.numpy() for name, grad in result.grads.items()}


def test_p13_gradient_penalty():
    """A WGAN-GP critic step in float16 is that of float32; second derivatives included."""
    full, exact = critic_step("float32", "none")
    half, grads = critic_step("mixed_float16", "static(1024)")
    assert half.stepped
    assert half.loss == pytest.approx(full.loss, rel=2e-3)
    for name, grad in grads.items():
        size = np.abs(exact[name]).max()
        np.testing.assert_allclose(grad, exact[name], atol=5e-3 * size, err_msg=name)


def test_p13_small_inner_gradients_are_not_lost():
    """Below 6e-8 float16 holds nothing; natively the penalty then sees zeros."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Input((4,)), layers.Dense(4, name="a"), layers.Dense(1)])
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), dynamic(init_scale=2.0**16))
    x = tf.constant(RNG.normal(size=(2, 4)).astype("f4"))

    def tiny(x):
        return tf.cast(model(x), tf.float32) * 1e-9

    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = tiny(x)
    lost = tape.gradient(outputs, x)
    assert not np.abs(lost).any()
    kept = amp.gradient(tiny, x)
    kernels = model.get_layer("a").kernel.numpy() @ model.layers[-1].kernel.numpy()
    assert kept.dtype == tf.float32
    np.testing.assert_allclose(kept, np.tile(kernels.T, (2, 1)) * 1e-9, rtol=2e-2, atol=1e-12)


def test_p13_wrong_use_is_refused():
    model = net()
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), "mixed_float16")
    with pytest.raises(mp.BackendError, match="must return something that depends on its first"):
        amp.gradient(lambda x: tf.constant(1.0), X)
    with pytest.raises(mp.BackendError, match="must begin with a floating-point tensor, got int32"):
        amp.gradient(lambda x: x, Y)


# --- several optimizers


class Gan(keras.Model):
    """A generator and a discriminator in one model."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential(
            [layers.Input((2,)), layers.Dense(16, activation="relu"), layers.Dense(2, name="made")]
        )
        self.discriminator = keras.Sequential(
            [layers.Input((2,)), layers.Dense(16, activation="relu"), layers.Dense(1, name="score")]
        )

    def call(self, z):
        return self.discriminator(self.generator(z))

    def losses_of(self):
        entropy = keras.losses.BinaryCrossentropy(from_logits=True)

        def d_loss(z, real):
            fake = tf.stop_gradient(self.generator(z))
            ones, zeros = tf.ones((len(real), 1)), tf.zeros((len(real), 1))
            return entropy(ones, self.discriminator(real)) + entropy(
                zeros, self.discriminator(fake)
            )

        def g_loss(z, real):
            return entropy(tf.ones((len(real), 1)), self(z))

        return {"d": d_loss, "g": g_loss}


def gan(policy="mixed_float16"):
    keras.utils.set_random_seed(0)
    model = Gan()
    model(np.zeros((4, 2), "f4"))
    optimizers = {}
    for name, part in (("d", model.discriminator), ("g", model.generator)):
        optimizers[name] = keras.optimizers.Adam(5e-3, beta_1=0.5)
        optimizers[name].build(part.trainable_variables)
    return model, mp.prepare(model, optimizers, policy)


def test_p11_alternating_gan_loop():
    """Each moves its own part alone; the generator learns where the data is."""
    model, amp = gan()
    losses = model.losses_of()
    rng = np.random.default_rng(1)
    for index in range(300):
        z = rng.normal(size=(64, 2)).astype("f4")
        real = (rng.normal(size=(64, 2)) * 0.3 + [2.0, -1.0]).astype("f4")
        before = [values(model.discriminator), values(model.generator)]
        bad = index in (10, 50)
        d = amp.step(losses["d"], z, real * np.float32(np.inf) if bad else real, optimizer="d")
        assert d.stepped_by == {"d": not bad}
        assert same(before[1], values(model.generator))
        middle = values(model.discriminator)
        assert same(before[0], middle) == bad
        assert amp.step(losses["g"], z, real, optimizer="g").stepped_by == {"g": True}
        assert same(middle, values(model.discriminator))
    made = model.generator(rng.normal(size=(256, 2)).astype("f4")).numpy().mean(axis=0)
    assert np.linalg.norm(made - [2.0, -1.0]) < 1.0
    assert amp.state.skipped_steps == 2
    assert [int(o.iterations.numpy()) for o in amp.optimizers.values()] == [298, 300]


def test_p11_simultaneous_gan_step():
    """Natively the optimizer that saw nothing steps; ours moves both or none."""
    shared = native_scaler(keras.optimizers.SGD(1.0))
    other = native_scaler(keras.optimizers.SGD(1.0))
    a, b = keras.Variable([1.0]), keras.Variable([1.0])
    shared.apply([tf.constant([np.inf])], [a])
    other.apply([tf.constant([1.0])], [b])
    assert a.numpy() == 1
    assert b.numpy() != 1

    model, amp = gan()
    losses = model.losses_of()
    z, real = X[:, :2].copy(), X[:, 2:4].copy()
    assert amp.step(losses, z, real).stepped_by == {"d": True, "g": True}
    before = values(model, *amp.optimizers.values())
    assert amp.step(losses, z, real * np.float32(np.inf)).stepped_by == {"d": False, "g": False}
    after = values(model, *amp.optimizers.values())
    assert same(values(model), before[: len(model.variables)])
    changed = [not np.array_equal(b, a) for b, a in zip(before, after, strict=True)]
    assert sum(changed) == 4  # scale and counts, which both optimizers hold
    assert amp.step(losses, z, real).stepped


# --- compiled graphs, other scalers


def operations(concrete):
    graph = concrete.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return [(node.op, node.attr) for node in nodes]


def test_p16_no_float64_on_the_device():
    for policy in ("float32", "mixed_float16", "model_bfloat16"):
        model = net()
        options = {"after_step": [lambda: None], "on_bad_micro_batch": "drop"}
        amp = mp.prepare(model, keras.optimizers.AdamW(1e-3), policy, **options)
        loss_fn = loss_of(model)
        amp.step(loss_fn, X, Y, clip_norm=1.0, micro_batches=2)
        ((function, _),) = amp._compiled.values()
        found = operations(function.get_concrete_function(X, Y))
        assert len(found) > 100
        double = tf.float64.as_datatype_enum
        wrong = [op for op, attr in found if any(a.type == double for a in attr.values())]
        assert wrong == []


def test_p46_two_nested_scalers():
    """Natively one wraps the other, and gradients are divided twice."""
    weight = keras.Variable([1.0])
    nested = native_scaler(native_scaler(keras.optimizers.SGD(1.0)))
    nested.build([weight])
    nested.apply([weight.value * nested.scale_loss(1.0)], [weight])
    assert weight.numpy() > 0.99  # should be 0
    with pytest.raises(mp.OptimizerError, match="two nested scalers"):
        mp.prepare(net(), native_scaler(), "mixed_float16")
    with pytest.raises(mp.OptimizerError, match="two nested scalers"):
        mp.prepare(net(), {"a": native_scaler(), "b": keras.optimizers.SGD()}, "mixed_float16")
