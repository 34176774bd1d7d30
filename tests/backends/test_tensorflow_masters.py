"""Master weights in tf.keras: every scheme, any optimizer, fit and steps, saved and given back."""

from __future__ import annotations

import gc

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")
import tensorflow as tf  # noqa: E402
import zoo  # noqa: E402
import zoo_tensorflow  # noqa: E402
from keras import layers  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore.numerics import master_weights as reference  # noqa: E402
from mpcore_tensorflow import TransactionalOptimizer, rounding  # noqa: E402

pytestmark = pytest.mark.backend("tensorflow")

OPTIMIZERS = keras.optimizers
KEPT = ("copy", "split", "split:nearest", "kahan", "stochastic:3")
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 8)).astype(np.float32)
Y = RNG.integers(0, 4, 16).astype(np.int32)
BAD = np.where(np.arange(8) == 0, np.float32(np.inf), X)


def policy(master, **fields):
    return mp.Policy(param="bfloat16", compute="bfloat16", by="model", master=master, **fields)


def net(width=16):
    """Trained, frozen and float32 layers: one of each that is stored in its own way."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(width, name="fc1"),
            layers.BatchNormalization(name="bn"),
            layers.Dense(width, activation="relu", name="frozen"),
            layers.Dense(4, name="fc2"),
        ]
    )
    model.get_layer("frozen").trainable = False
    return model


def loss_of(model):
    @tf.autograph.experimental.do_not_convert
    def loss(x, y):
        return CROSS_ENTROPY(y, model(x, training=True))

    return loss


def state(amp):
    """Return everything but the state of the scale that is kept between steps, as bits."""
    own = [v for o in amp.optimizers.values() for v in o.variables]
    beside = [
        v for o in amp.optimizers.values() for one in o.master_states.values() for v in one.beside
    ]
    left = {id(v) for o in amp.optimizers.values() for v in (o.dynamic_scale, o.counts)}
    held = [v for v in (*amp.model.variables, *own, *beside) if id(v) not in left]
    return [np.asarray(v.value).tobytes() for v in held]


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


# --- arithmetic


def u16(tensor):
    return tf.bitcast(tensor, tf.uint16).numpy()


@pytest.mark.parametrize("size", [5003, 70_001])  # the large one is compiled by XLA
def test_bits_are_those_of_the_reference(size):
    bits = RNG.integers(0, 2**32, size, dtype=np.uint64).astype(np.uint32)
    special = (0, 0x80000000, 1, 0x007FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001)
    bits[:8], bits[8:1000] = special, bits[8:1000] & 0xFFFF8000  # ties are among these
    values = bits.view(np.float32)
    tensor = tf.constant(values)
    for how in ("nearest", "away", "truncate"):
        assert np.array_equal(
            u16(rounding.round_low(tensor, how)), reference.round_bits(values, how)
        )
        low, rest, *ties = rounding.split(tensor, how)
        high, others, listed = reference.split(values, how)
        assert np.array_equal(u16(low), high)
        assert np.array_equal(rest.numpy(), others)
        assert rest.dtype.name == others.dtype.name
        if how == "nearest":
            flags = np.unpackbits(ties[0].numpy(), bitorder="little")
            assert np.array_equal(np.flatnonzero(flags), listed)
            assert len(listed) > 100
        joined = rounding.join(low, rest, how, *ties).numpy()
        truth = reference.join(high, others, how, listed)
        assert np.array_equal(joined.view(np.uint32), truth.view(np.uint32))
    chance = reference.noise(2**32 - 1, 7, 5, size)
    rounded = rounding.round_stochastic(tensor, 2**32 - 1, tf.constant(7, tf.uint32), 5)
    assert np.array_equal(u16(rounded), reference.round_stochastic(values, chance))
    # a CPU flushes subnormal differences
    large = np.where(np.abs(values) < 2.0**-100, np.float32(0.1), values)
    parts = rounding.compensate(tf.constant(large))
    for ours, theirs in zip(parts, reference.compensate(large), strict=True):
        assert np.array_equal(u16(ours), theirs)
    restored = reference.restore(*reference.compensate(large))
    np.testing.assert_array_equal(rounding.restore(*parts).numpy(), restored)


# --- split is copy


def zoo_run(name, optimizer, master, steps, call=None, **fields):
    entry = zoo_tensorflow.ZOO[name]
    model = entry.build()
    amp = mp.prepare(model, optimizer(), policy(master, **fields))
    rng, loss = zoo.generator(name), entry.loss(model)
    batches = [entry.tensors(entry.batch(rng)) for _ in range(8)]
    losses = [amp.step(loss, *batches[i % 8], **(call or {})) for i in range(steps)]
    return amp, [result.loss for result in losses]


def sgd():
    return OPTIMIZERS.SGD(0.05, momentum=0.9)


def adam():
    return OPTIMIZERS.Adam(1e-3)


def adamw():
    return OPTIMIZERS.AdamW(1e-3)


@pytest.mark.parametrize(
    ("name", "optimizer", "how", "steps"),
    [
        ("cnn", sgd, "truncate", 40),
        ("cnn", adamw, "nearest", 40),
        ("encoder", adam, "away", 40),
        pytest.param("cnn", sgd, "truncate", 200, marks=pytest.mark.nightly),
        pytest.param("cnn", adam, "away", 200, marks=pytest.mark.nightly),
        pytest.param("cnn", adamw, "nearest", 200, marks=pytest.mark.nightly),
        pytest.param("encoder", sgd, "nearest", 200, marks=pytest.mark.nightly),
        pytest.param("encoder", adam, "truncate", 200, marks=pytest.mark.nightly),
        pytest.param("encoder", adamw, "away", 200, marks=pytest.mark.nightly),
    ],
)
def test_split_is_copy_bit_for_bit(name, optimizer, how, steps):
    """Each step rounds thousands of weights up, down and over a carry, so 40 meet what 200 meet."""
    copied, losses = zoo_run(name, optimizer, f"copy:{how}", steps)
    split, others = zoo_run(name, optimizer, f"split:{how}", steps)
    assert others == losses
    assert len(set(losses)) > 0.75 * steps
    assert equal(split.weights(), copied.weights())
    for one, other in zip(split.model.variables, copied.model.variables, strict=True):
        assert np.asarray(one.value).tobytes() == np.asarray(other.value).tobytes()
    slots = [a.optimizer.inner_optimizer.variables for a in (split, copied)]
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(*slots, strict=True))


def test_kahan_and_stochastic_follow_float32_on_the_transformer_and_none_does_not():
    losses = {}
    for master in ("float32", "kahan", "stochastic", "none"):
        entry = zoo_tensorflow.ZOO["encoder"]
        model = entry.build()
        chosen = master if master == "float32" else policy(master)
        amp = mp.prepare(model, adam(), chosen, count_lost_updates="off")
        rng, loss = zoo.generator("encoder"), entry.loss(model)
        batches = [entry.tensors(entry.batch(rng)) for _ in range(8)]
        order = np.random.default_rng(0)
        for _ in range(25):
            for place in order.permutation(8):
                amp.step(loss, *batches[place])
        losses[master] = np.mean([float(loss(*batch)) for batch in batches])
    # float32 runs in three orders of the batches ended with losses 0.03 apart
    for master in ("kahan", "stochastic"):
        assert losses[master] == pytest.approx(losses["float32"], abs=0.03)
    assert losses["none"] > losses["float32"] + 0.5


def test_split_is_copy_for_tied_weights_sparse_gradients_and_micro_batches():
    call = {"micro_batches": 2, "clip_norm": 0.1}
    copied, losses = zoo_run("gpt", adamw, "copy:away", 6, call)
    split, others = zoo_run("gpt", adamw, "split:away", 6, call)
    assert others == losses
    assert equal(split.weights(), copied.weights())


SHAPES = {"kernel": (6, 4), "bias": (4,), "table": (9, 4)}


def updated(make, master, *, mode="eager", steps=7, **kinds):
    """Return the truth and the slots after some steps, one gradient of which is sparse."""
    rng = np.random.default_rng(1)
    low = [
        keras.Variable(rng.normal(size=shape), dtype="bfloat16", name=name)
        for name, shape in SHAPES.items()
    ]
    low[0].constraint = keras.constraints.MaxNorm(1.5)
    wrapper = TransactionalOptimizer(make(), "none", master, **kinds)
    wrapper.build(low)

    def step(kernel, bias, rows):
        sparse = tf.IndexedSlices(rows, tf.constant([1, 5, 7]), tf.constant([9, 4]))
        # in a branch, as every step is
        tf.cond(tf.reduce_all(rows < 99), lambda: run([kernel, bias, sparse]), lambda: 0)
        wrapper.count_step(True)

    def run(grads):
        wrapper.update(grads, low)
        return 1

    if mode != "eager":
        step = tf.function(step, autograph=False, jit_compile=mode == "compiled")
    for _ in range(steps):
        step(*(rng.normal(size=s).astype(np.float32) for s in ((6, 4), (4,), (3, 4))))
    truth = [one.open().numpy() for one in wrapper.master_states.values()]
    return truth, [v.numpy() for v in wrapper.inner_optimizer.variables], wrapper


def excluding(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


MANY = {
    "momentum": sgd,
    "nesterov": lambda: OPTIMIZERS.SGD(0.1, momentum=0.9, nesterov=True),
    "amsgrad": lambda: OPTIMIZERS.Adam(0.01, amsgrad=True, clipnorm=0.5),
    "excludes": lambda: excluding(OPTIMIZERS.AdamW(0.01)),
    "rmsprop": lambda: OPTIMIZERS.RMSprop(0.01, momentum=0.5, centered=True),
    "lion": lambda: OPTIMIZERS.Lion(0.01),
    "adafactor": lambda: OPTIMIZERS.Adafactor(0.01),
    "ftrl": lambda: OPTIMIZERS.Ftrl(0.01),
    "adagrad": lambda: OPTIMIZERS.Adagrad(0.1),
    "adadelta": lambda: OPTIMIZERS.Adadelta(0.1),
    "adamax": lambda: OPTIMIZERS.Adamax(0.01),
    "nadam": lambda: OPTIMIZERS.Nadam(0.01, global_clipnorm=0.5),
    "lamb": lambda: OPTIMIZERS.Lamb(0.01, weight_decay=0.1),
    "averages": lambda: OPTIMIZERS.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
    "accumulates": lambda: OPTIMIZERS.AdamW(0.01, gradient_accumulation_steps=3),
    "schedule": lambda: OPTIMIZERS.Adam(OPTIMIZERS.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "schedule_free": lambda: OPTIMIZERS.ScheduleFreeAdamW(0.01),
}


@pytest.mark.parametrize("name", MANY)
def test_split_is_copy_under_any_optimizer(name):
    copied = updated(MANY[name], "copy:away")
    split = updated(MANY[name], "split:away")
    for one, other in zip(split[:2], copied[:2], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    start = updated(MANY[name], "split:away", steps=0)
    assert all(not np.array_equal(a, b) for a, b in zip(split[0], start[0], strict=True))


@pytest.mark.parametrize("how", ["graph", "compiled"])
def test_split_is_copy_where_the_optimizer_assigns_in_branches(how):
    for name in ("accumulates", "averages"):
        copied = updated(MANY[name], "copy:away", mode=how)
        split = updated(MANY[name], "split:away", mode=how)
        # XLA fuses the two otherwise: one ulp
        close = np.testing.assert_array_max_ulp if how == "compiled" else _same
        for one, other in zip((*split[0], *split[1]), (*copied[0], *copied[1]), strict=True):
            close(one, other)


def _same(one, other):
    np.testing.assert_array_equal(one, other)


def test_large_parameters_are_opened_in_groups(monkeypatch):
    whole = updated(adamw, "split:away", mode="graph")
    monkeypatch.setattr(reference, "CHUNK", 20)
    seen = []
    real = OPTIMIZERS.AdamW.apply

    def apply(self, grads, variables):
        seen.append(len(variables))
        return real(self, grads, variables)

    monkeypatch.setattr(OPTIMIZERS.AdamW, "apply", apply)
    # a replaced method is no longer Keras' own, so that the group is one again
    together = updated(adamw, "split:away", mode="graph")
    assert seen == [3]
    monkeypatch.setattr(OPTIMIZERS.Optimizer, "apply", apply)
    grouped = updated(adamw, "split:away", mode="graph")
    assert seen == [3, 1, 1, 1]
    for one in (together, grouped):
        for a, b in zip((*one[0], *one[1]), (*whole[0], *whole[1]), strict=True):
            np.testing.assert_array_equal(a, b)


# --- what is stored


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("float32", 16),
        ("model_bfloat16", 16),
        ("model_bfloat16, master=split", 14),
        ("model_bfloat16, master=kahan", 14),
        ("model_bfloat16, master=stochastic, optimizer_state=bfloat16", 8),
    ],
)
def test_bytes_of_a_parameter_with_adam(text, expected):
    before = live_bytes()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Input((8,)), layers.Dense(2048), layers.Dense(16)])
    amp = mp.prepare(model, adam(), text)
    assert amp.array_bytes()["gradients"] == 0
    loss = loss_of(model)
    for _ in range(2):
        amp.step(loss, X, Y)
    measured = amp.array_bytes()
    total = sum(measured.values())
    assert total / model.count_params() == pytest.approx(expected, rel=0.01)
    # all variables that are alive: nothing in float32 is kept beside what is told
    assert live_bytes() - before == pytest.approx(total - measured["gradients"], rel=0.005)


def live_bytes():
    gc.collect()
    # By type: to ask an object itself wakes modules that warn of it.
    found = [x for x in gc.get_objects() if issubclass(type(x), tf.Variable)]
    return sum(v.dtype.size * v.shape.num_elements() for v in found)


@pytest.mark.parametrize("master", KEPT)
def test_skipped_step_leaves_every_part_as_it_was(master):
    model = net()
    amp = mp.prepare(model, adam(), policy(master, optimizer_state="bfloat16"))
    loss = loss_of(model)
    assert amp.step(loss, X, Y).stepped
    before, steps = state(amp), amp.optimizer_steps
    assert len(before) > 20
    assert not amp.step(loss, BAD, Y).stepped
    assert state(amp) == before
    assert amp.optimizer_steps == steps == (1 if master.startswith("stochastic") else 0)
    assert amp.step(loss, X, Y).stepped
    assert state(amp) != before


def test_stochastic_rounding_draws_the_noise_of_the_reference():
    rate, grad = 0.25, RNG.normal(size=(6, 4)).astype(np.float32)
    start = keras.Variable(RNG.normal(size=(6, 4)), dtype="bfloat16", name="kernel")
    other = keras.Variable(np.zeros(3), dtype="float32", name="other")
    wrapper = TransactionalOptimizer(OPTIMIZERS.SGD(rate), "none", "stochastic:9")
    wrapper.build([other, start])
    for step in range(3):
        value = np.asarray(start.numpy(), np.float32) - np.float32(rate) * grad
        expected = reference.round_stochastic(value, reference.noise(9, step, 1, 24))
        wrapper.update([tf.zeros(3), tf.constant(grad)], [other, start])
        wrapper.count_step(True)
        assert np.array_equal(u16(start.value), expected)


# --- given back, loaded, saved


@pytest.mark.parametrize("master", ["copy", "split:nearest", "kahan"])
def test_release_gives_the_truth_back_and_another_scheme_goes_on(master):
    model = net()
    frozen = model.get_layer("frozen").kernel
    exact = frozen.numpy()
    optimizer = adam()
    amp = mp.prepare(model, optimizer, policy(master, optimizer_state="bfloat16"))
    assert frozen.dtype == "bfloat16"
    for _ in range(2):
        amp.step(loss_of(model), X, Y)
    truth = amp.weights()
    if master != "kahan":
        np.testing.assert_array_equal(truth["frozen.kernel"], exact)
    np.testing.assert_allclose(truth["frozen.kernel"], exact, rtol=2.0**-16)
    amp.release()
    assert {v.dtype for v in (*model.trainable_variables, frozen)} == {"float32"}
    assert {v.dtype for v in optimizer.variables[1:]} == {"float32"}
    again = mp.prepare(model, optimizer, policy("split"))
    assert equal(again.weights(), truth)
    assert again.step(loss_of(model), X, Y).stepped
    assert int(optimizer.iterations.numpy()) == 3


@pytest.mark.parametrize("master", ["copy", "split:nearest", "kahan", "stochastic:3"])
def test_saved_run_goes_on_bit_for_bit(master, tmp_path):
    def go_on(amp, model):
        return [amp.step(loss_of(model), X, Y).loss for _ in range(2)]

    text = policy(master, optimizer_state="bfloat16")
    model = net()
    amp = mp.prepare(model, adam(), text)
    model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
    go_on(amp, model)
    model.save(tmp_path / "run.keras")
    loaded = keras.saving.load_model(tmp_path / "run.keras")
    again = mp.prepare(loaded, loaded.optimizer, text)
    assert equal(again.weights(), amp.weights())  # the frozen ones too
    assert go_on(again, loaded) == go_on(amp, model)
    assert state(again) == state(amp)


@pytest.mark.parametrize("master", ["copy", "split"])
def test_float32_checkpoint_keeps_its_truth_in_16_bit_parameters(master, tmp_path):
    source = net()
    mp.prepare(source, sgd(), "float32").step(loss_of(source), X, Y)
    source.save_weights(tmp_path / "full.weights.h5")
    exact = {v.path: v.numpy() for v in source.variables if v.dtype == "float32"}
    model = net()
    amp = mp.prepare(model, sgd(), policy(master))
    for load in (
        lambda: model.load_weights(tmp_path / "full.weights.h5"),
        lambda: model.set_weights([v.numpy() for v in source.weights]),
    ):
        amp.load_weights({k: np.zeros_like(v) for k, v in amp.weights().items()})
        load()
        for variable in model.variables:
            if variable.path in exact:
                np.testing.assert_array_equal(amp.master_values(variable), exact[variable.path])
    kernel = model.get_layer("fc1").kernel
    before = amp.master_values(kernel)
    kernel.assign_add(tf.fill((8, 16), 5e-5))  # less than bfloat16 can hold
    np.testing.assert_allclose(amp.master_values(kernel) - before, 5e-5, rtol=0.1)
    with pytest.raises(ValueError, match="must match"):
        kernel.assign(np.zeros(3))
    amp.release()
    kernel.assign(np.ones((8, 16)))
    assert kernel.numpy().tolist() == np.ones((8, 16)).tolist()


def test_run_is_saved_portably_and_loaded_into_another_scheme(tmp_path):
    model = net()
    amp = mp.prepare(model, adam(), policy("split"))
    amp.step(loss_of(model), X, Y)
    amp.save(tmp_path / "run.amp", weights=True)
    other = mp.prepare(net(), adam(), policy("split:nearest"))
    other.load(tmp_path / "run.amp", any_policy=True)
    assert equal(other.weights(), amp.weights())
    with pytest.raises(mp.CheckpointError):
        other.load_weights({"fc1.kernel": np.zeros((8, 16), np.float32)})


# --- fit, several optimizers


@pytest.mark.parametrize("compiled", [False, True])
def test_fit_trains_by_any_scheme(compiled):
    found = {}
    masters = ("copy:away", "split:away")
    for master in (*masters, "stochastic") if not compiled else masters:
        model = net()
        amp = mp.prepare(model, adam(), policy(master))
        model.compile(amp.optimizer, loss=CROSS_ENTROPY, jit_compile=compiled)
        model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        assert int(amp.optimizer.iterations.numpy()) == 8
        found[master] = amp.weights(), amp.optimizer_steps
    assert compiled or found["stochastic"][1] == 8
    close = (
        (lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)) if compiled else _same
    )
    for path, value in found["copy:away"][0].items():
        close(found["split:away"][0][path], value)


def test_averages_reach_the_truth_at_the_end_of_fit():
    model = net()
    optimizer = OPTIMIZERS.SGD(0.1, use_ema=True)
    amp = mp.prepare(model, optimizer, policy("split", optimizer_state="bfloat16"))
    model.compile(amp.optimizer, loss=CROSS_ENTROPY)
    model.fit(X, Y, batch_size=4, verbose=0)
    average = optimizer._model_variables_moving_average[0]
    assert average.dtype == "float32"
    np.testing.assert_array_equal(amp.weights()["fc1.kernel"], average.numpy())


def test_several_optimizers_share_the_count_of_steps():
    found = []
    for _ in range(2):
        model = net()
        own = {}
        for name in ("fc1", "fc2"):
            own[name] = adam()
            own[name].build(model.get_layer(name).trainable_variables)
        model.get_layer("bn").trainable = False
        amp = mp.prepare(model, own, policy("stochastic:1", optimizer_state="bfloat16"))
        loss = loss_of(model)
        amp.step(loss, X, Y)
        amp.step(loss, X, Y, optimizer="fc2")
        assert amp.optimizer_steps == 2
        assert {v.dtype for o in own.values() for v in o.variables[2:]} == {"bfloat16"}
        found.append(amp.weights())
    assert equal(*found)


# --- stalls, and what is refused


def test_stall_is_told_within_20_steps_and_never_of_a_healthy_run(recwarn):
    model = net()
    amp = mp.prepare(model, OPTIMIZERS.SGD(1e-4), policy("none"))
    loss = loss_of(model)
    for _ in range(19):
        amp.step(loss, X, Y)
    assert not recwarn.list
    with pytest.warns(mp.MpcoreWarning, match=r"most updates of .*fc1.* lost to roun") as told:
        amp.step(loss, X, Y)
    assert told[0].filename == __file__
    assert amp.last.lost_updates["fc1"] > 0.5
    assert amp.last.lost_updates["bn"] < 0.1  # float32
    healthy = net()
    amp = mp.prepare(healthy, OPTIMIZERS.SGD(1e-4), policy("split"), count_lost_updates="on")
    loss = loss_of(healthy)
    for _ in range(21):
        amp.step(loss, X, Y)
    assert max(amp.last.lost_updates.values()) < 0.1
    assert not recwarn.list


def test_stall_is_told_in_fit():
    model = net()
    amp = mp.prepare(model, OPTIMIZERS.SGD(1e-4), policy("none"))
    model.compile(amp.optimizer, loss=CROSS_ENTROPY)
    with pytest.warns(mp.MpcoreWarning, match="lost to rounding in the last 20 steps") as told:
        model.fit(X, Y, batch_size=4, epochs=6, verbose=0, callbacks=[amp.callback()])
    assert told[0].filename == __file__


def test_lost_updates_of_a_sparse_gradient_are_those_of_its_rows():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Input((2,), dtype="int32"), layers.Embedding(9, 4, name="e")])
    amp = mp.prepare(model, OPTIMIZERS.SGD(1e-12), policy("none"))
    tokens = np.array([[1, 2], [2, 5]], np.int32)

    @tf.autograph.experimental.do_not_convert
    def loss(x):
        return tf.reduce_sum(tf.cast(model(x), tf.float32))

    result = amp.step(loss, tokens)
    assert result.lost_counts()["e.embeddings"].tolist() == [12.0, 12.0]


def test_what_cannot_be_is_refused():
    model = net()
    free = OPTIMIZERS.ScheduleFreeAdamW(0.1)
    with pytest.raises(mp.OptimizerError, match=r"ScheduleFreeAdamW.*second set of weights"):
        mp.prepare(model, free, policy("split", optimizer_state="bfloat16"))
    amp = mp.prepare(model, sgd(), policy("split"))
    with pytest.raises(mp.OptimizerError, match=r"must stay 'split'.*amp.release\(\) first"):
        mp.prepare(model, amp.optimizer, policy("kahan"))
    assert amp.step(loss_of(model), X, Y).stepped


def test_private_field_of_a_variable_is_as_we_use_it():
    variable = keras.Variable([1.0], name="v")
    optimizer = sgd()
    assert optimizer._var_key(variable) == variable._value._unique_id
