"""The Keras shim beside Keras' own class: the same numbers, the same files, the same defects."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402
from keras import layers  # noqa: E402

from mpcore import BackendError, PolicyError  # noqa: E402
from mpcore_compat.keras import LossScaleOptimizer, mixed_precision  # noqa: E402

pytestmark = pytest.mark.backend("tensorflow")

Native = keras.optimizers.LossScaleOptimizer
Legacy = mixed_precision.LossScaleOptimizer
TRACES = json.loads(
    (Path(__file__).parents[1] / "golden" / "loss_scale_traces.json").read_text(encoding="utf-8")
)
RNG = np.random.default_rng(11)
X = RNG.normal(size=(64, 8)).astype("f4")
Y = RNG.integers(0, 4, 64)

# Two devices on this CPU, for tf.distribute; before TensorFlow starts them.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def values(optimizer):
    return [variable.value.numpy() for variable in optimizer.variables]


def traces(*names):
    found = [t for t in TRACES if t["implementation"] in names]
    assert len(found) >= 9
    return [pytest.param(t, id=t["id"]) for t in found]


# --- the machine


@pytest.mark.parametrize(
    "trace", traces("keras.LossScaleOptimizer", "keras.LossScaleOptimizer(stateless_apply,jax)")
)
def test_recorded_trajectories(trace):
    """The traces under JAX differ from TensorFlow only where that flushes subnormals to 0."""
    jax = "jax" in trace["implementation"]
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.0), **trace["config"])
    weight = keras.Variable([1.0])
    optimizer.build([weight])
    scales, counters, iterations = [], [], []
    # Under JAX the recorded gradients were multiplied by the scale, so that inf skipped them.
    for bad in trace["skipped" if jax else "found_inf"]:
        optimizer.apply([tf.constant([math.inf if bad else 0.0])])
        scales.append(float(optimizer.dynamic_scale.value))
        counters.append(int(optimizer.step_counter.value))
        iterations.append(int(optimizer.iterations.value))
    expected = [float(scale) for scale in trace["scale_after"]]
    if jax:
        expected = [0.0 if 0 < scale < 2.0**-126 else scale for scale in expected]
    assert scales == expected
    assert counters == trace["tracker_after"]["step_counter"][: len(counters)]
    if "inner_iterations" in trace["tracker_after"]:
        assert iterations == trace["tracker_after"]["inner_iterations"][: len(iterations)]


@pytest.mark.parametrize(
    "trace",
    traces(
        "tf_keras.mixed_precision.LossScaleOptimizer",
        "tf_keras.mixed_precision.LossScaleOptimizerV3",
    ),
)
def test_recorded_trajectories_of_keras_2(trace):
    optimizer = Legacy(keras.optimizers.SGD(0.0), **trace["config"])
    weight = keras.Variable([1.0])
    for step, bad in enumerate(trace["found_inf"]):
        optimizer.apply_gradients([(tf.constant([math.inf if bad else 0.0]), weight)])
        assert float(optimizer.loss_scale) == float(trace["scale_after"][step])
        tracked = trace["tracker_after"]
        assert int(optimizer.dynamic_counter.value) == tracked["dynamic_counter"][step]
        assert int(optimizer.iterations.value) == tracked["iterations"][step]


# --- beside the native


def run(cls, pattern, *, compiled, inner=None, dtype="float32", **arguments):
    """Return the weights and the optimizer's variables after each step of ``pattern``."""
    optimizer = cls((inner or (lambda: keras.optimizers.Adam(0.1)))(), **arguments)
    weights = [keras.Variable(np.linspace(-1, 1, 6).reshape(2, 3), dtype="float32") for _ in "ab"]
    optimizer.build(weights)
    seen, rng = [], np.random.default_rng(5)

    def step(grad):
        optimizer.apply([grad, None], weights)

    step = tf.function(step) if compiled else step
    for bad in pattern:
        grad = rng.normal(size=(2, 3))
        if bad:
            grad[rng.integers(2), rng.integers(3)] = rng.choice([math.inf, -math.inf, math.nan])
        step(tf.constant(grad, dtype))
        seen.append([w.value.numpy() for w in weights] + values(optimizer))
    return seen


PATTERNS = {
    "seldom": np.random.default_rng(1).random(40) < 0.1,
    "often": np.random.default_rng(2).random(40) < 0.5,
    "quiet": np.zeros(20, bool),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")  # of both, alike
def test_equals_the_native_bit_for_bit(pattern, compiled):
    arguments = {"initial_scale": 3.7, "dynamic_growth_steps": 3, "compiled": compiled}
    ours, theirs = (run(c, PATTERNS[pattern], **arguments) for c in (LossScaleOptimizer, Native))
    for left, right in zip(ours, theirs, strict=True):
        same(left, right)


@pytest.mark.parametrize("steps", [0, 1, 2, 2.5, 3.0, -1])
@pytest.mark.parametrize("scale", [0.0, -3.0, math.nan, math.inf, 2.0**126, 2.0**-125])
@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")  # of both, alike
def test_equals_the_native_where_it_should_have_refused(steps, scale):
    arguments = {"initial_scale": scale, "dynamic_growth_steps": steps, "compiled": False}
    pattern = [False, False, True, True, False, False, False]
    ours, theirs = (run(c, pattern, **arguments) for c in (LossScaleOptimizer, Native))
    for left, right in zip(ours, theirs, strict=True):
        same(left, right)


@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")  # of both, alike
def test_equals_the_native_with_float16_gradients():
    arguments = {"initial_scale": 2.0**20, "compiled": True, "dtype": "float16"}
    ours, theirs = (run(c, PATTERNS["seldom"], **arguments) for c in (LossScaleOptimizer, Native))
    for left, right in zip(ours, theirs, strict=True):
        same(left, right)


@pytest.mark.parametrize("counter", [1, 2, 3, 7])
def test_a_counter_beyond_its_interval_waits_as_in_the_native(counter):
    seen = []
    for cls in (LossScaleOptimizer, Native):
        optimizer = cls(keras.optimizers.SGD(0.0), dynamic_growth_steps=3)
        weight = keras.Variable([1.0])
        optimizer.build([weight])
        optimizer.step_counter.assign(counter)
        took = []
        for grad in (0.0, 0.0, 0.0, math.inf, 0.0, 0.0, 0.0):
            optimizer.apply([tf.constant([grad])])
            took.append((float(optimizer.dynamic_scale.value), int(optimizer.step_counter.value)))
        seen.append(took)
    assert seen[0] == seen[1]


def test_sparse_gradients_equal_the_natives():
    seen = []
    for cls in (LossScaleOptimizer, Native):
        optimizer = cls(keras.optimizers.SGD(0.5), initial_scale=3.0)
        table = keras.Variable(np.ones((4, 2)), dtype="float32")
        for value in (6.0, math.inf, 9.0):
            grad = tf.IndexedSlices(tf.fill((3, 2), value), tf.constant([0, 2, 0]), (4, 2))
            optimizer.apply([grad], [table])
        seen.append([table.value.numpy(), *values(optimizer)])
    same(*seen)


def on_replicas(cls, **arguments):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        inner = keras.optimizers.SGD(0.5)
        optimizer = cls(inner, initial_scale=4.0, dynamic_growth_steps=2, **arguments)
        weight = keras.Variable([1.0])
        optimizer.build([weight])

    @tf.function
    def step(first, second):
        def replica():
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply([tf.where(index == 0, first, second)])

        strategy.run(replica)

    return weight, optimizer, step


def test_replicas_equal_the_natives():
    """Under a strategy too, where the native takes the first replica's answer."""
    seen = []
    for cls in (LossScaleOptimizer, Native):
        weight, optimizer, step = on_replicas(cls)
        for pair in ((1.0, 2.0), (math.inf, 1.0), (1.0, 1.0), (2.0, 3.0), (1.0, 3.0)):
            step(*(tf.constant([value]) for value in pair))
        seen.append([weight.value.numpy(), *values(optimizer)])
    same(*seen)


SCRIPT = """
import keras
import numpy as np
from {module} import LossScaleOptimizer

keras.utils.set_random_seed(1)
keras.mixed_precision.set_global_policy("mixed_float16")
model = keras.Sequential([
    keras.layers.Input((8,)),
    keras.layers.Dense(16, activation="relu", name="hidden"),
    keras.layers.BatchNormalization(name="bn"),
    keras.layers.Dense(4, dtype="float32", name="head"),
], name="net")
keras.mixed_precision.set_global_policy("float32")
optimizer = LossScaleOptimizer(
    keras.optimizers.AdamW(keras.optimizers.schedules.ExponentialDecay(1e-2, 5, 0.9), name="inner"),
    initial_scale=2.0**20, dynamic_growth_steps=4, name="lso",
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=optimizer, loss=loss)
assert model.optimizer is optimizer
history = model.fit(X, Y, batch_size=16, epochs=4, shuffle=False, verbose=0).history
model.save(PATH)
"""


def scripted(module, path):
    space = {"X": X, "Y": Y, "PATH": path}
    # The same text as people have it, with another import line.
    exec(SCRIPT.format(module=module), space)
    return space


def test_a_script_that_changes_its_import_line_trains_the_same(tmp_path):
    ours = scripted("mpcore_compat.keras", str(tmp_path / "ours.keras"))
    theirs = scripted("keras.optimizers", str(tmp_path / "theirs.keras"))
    assert type(ours["model"].optimizer) is LossScaleOptimizer
    assert type(theirs["model"].optimizer) is Native
    assert ours["history"] == theirs["history"]
    same(ours["model"].get_weights(), theirs["model"].get_weights())
    same(values(ours["optimizer"]), values(theirs["optimizer"]))
    scale = float(ours["optimizer"].dynamic_scale.value)
    assert scale < 2.0**20  # it has overflowed, and trained after that
    assert 0 < int(ours["optimizer"].iterations.value) < 16
    assert ours["optimizer"].get_config() == theirs["optimizer"].get_config()
    names = [[v.name for v in s["optimizer"].variables] for s in (ours, theirs)]
    assert names[0] == names[1]


# --- files

READER = """
import sys, numpy as np, keras
model = keras.saving.load_model(sys.argv[1])
assert "mpcore" not in sys.modules and "mpcore_compat" not in sys.modules
optimizer = model.optimizer
print(type(optimizer) is keras.optimizers.LossScaleOptimizer, float(optimizer.dynamic_scale.value))
np.savez(sys.argv[2], *[v.value.numpy() for v in optimizer.variables])
"""


def read_by_plain_keras(path, tmp_path):
    command = [sys.executable, "-c", READER, str(path), str(tmp_path / "read.npz")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_plain_keras_reads_our_file(tmp_path):
    path = tmp_path / "ours.keras"
    ours = scripted("mpcore_compat.keras", str(path))["optimizer"]
    done = read_by_plain_keras(path, tmp_path)
    assert done.stdout.split() == ["True", str(float(ours.dynamic_scale.value))], done.stderr
    with np.load(tmp_path / "read.npz") as read:
        same(list(read.values()), values(ours))


def test_our_file_comes_back_as_ours_and_goes_on(tmp_path):
    path = str(tmp_path / "ours.keras")
    first = scripted("mpcore_compat.keras", path)
    second = keras.saving.load_model(path)
    assert type(second.optimizer) is LossScaleOptimizer
    same(values(second.optimizer), values(first["optimizer"]))
    for model in (first["model"], second):
        model.fit(X, Y, batch_size=16, shuffle=False, verbose=0)
    same(second.get_weights(), first["model"].get_weights())


def test_a_native_file_stays_native_and_its_variables_fit_ours(tmp_path):
    path = str(tmp_path / "theirs.keras")
    theirs = scripted("keras.optimizers", path)["model"]
    read = keras.saving.load_model(path)
    assert type(read.optimizer) is Native
    store = {}
    theirs.optimizer.save_own_variables(store)
    ours = LossScaleOptimizer.from_config(theirs.optimizer.get_config())
    ours.build(theirs.trainable_variables)
    ours.load_own_variables(store)
    same(values(ours), values(theirs.optimizer))
    back = {}
    ours.save_own_variables(back)
    assert back.keys() == store.keys()


def test_plain_keras_refuses_a_safe_file_and_ours_reads_it(tmp_path):
    model = keras.Sequential([layers.Input((2,)), layers.Dense(1)])
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(), safe=True), "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    path = tmp_path / "safe.keras"
    model.save(path)
    refused = read_by_plain_keras(path, tmp_path)
    assert refused.returncode != 0
    assert "does not support arguments: `safe`" in refused.stderr
    assert keras.saving.load_model(path).optimizer.safe


# --- another backend of Keras

STATELESS = """
import math
import keras
import numpy as np
from keras import ops
from mpcore_compat.keras import LossScaleOptimizer

assert keras.backend.backend() == "torch"


def run(cls, **arguments):
    optimizer = cls(keras.optimizers.Adam(0.1), 8.0, 2, **arguments)
    weight = keras.Variable([1.0, 2.0])
    optimizer.build([weight])
    state, weights, seen = [v.value for v in optimizer.variables], [weight.value], []
    for grad in (1.0, 2.0, math.inf, 3.0, math.nan, 1.0, 1.0, 0.5):
        weights, state = optimizer.stateless_apply(state, [ops.array([grad, 1.0])], weights)
        seen += [ops.convert_to_numpy(value).tolist() for value in (*weights, *state)]
    for grad in (1.0, math.inf, 3.0):
        optimizer.apply([ops.array([grad, 1.0])], [weight])
    return seen, ops.convert_to_numpy(weight.value).tolist()


theirs = run(keras.optimizers.LossScaleOptimizer)
assert run(LossScaleOptimizer) == theirs
assert run(LossScaleOptimizer, safe=True) == theirs  # powers of two, in range
try:
    LossScaleOptimizer(keras.optimizers.SGD()).stateless_apply([], [], [])
except ValueError as error:
    print(error)
"""


def test_other_backends_and_the_stateless_way_equal_the_native():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch, as the second backend of Keras")
    done = subprocess.run(
        [sys.executable, "-c", STATELESS],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KERAS_BACKEND": "torch"},
    )
    assert "must be built" in done.stdout, done.stderr


# --- its errors


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        pytest.param({"dynamic": False}, "set `loss_scale_factor`", id="static"),
        pytest.param({"foo": 1, "bar": 2}, "arguments: `foo`, `bar`", id="unknown"),
        pytest.param({"clipnorm": 1.0}, "on the `inner_optimizer`", id="base"),
    ],
)
def test_refuses_as_the_native_does(arguments, match):
    for cls in (LossScaleOptimizer, Native):
        with pytest.raises(ValueError, match=match):
            cls(keras.optimizers.SGD(), **arguments)


def test_refuses_no_gradients_as_the_native_does():
    for cls in (LossScaleOptimizer, Native):
        optimizer = cls(keras.optimizers.SGD())
        with pytest.raises(ValueError, match="No gradients provided"):
            optimizer.apply([None], [keras.Variable([1.0])])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        pytest.param({"initial_scale": 0.5}, "`init_scale` must be finite and in", id="low"),
        pytest.param({"initial_scale": math.inf}, "`init_scale` must be finite", id="inf"),
        pytest.param({"dynamic_growth_steps": 0}, "`growth_interval` must be", id="steps"),
    ],
)
def test_safe_refuses_what_it_could_not_leave(arguments, match):
    inner = keras.optimizers.SGD(loss_scale_factor=3.0)
    with pytest.raises(PolicyError, match=match):
        LossScaleOptimizer(inner, safe=True, **arguments)
    assert inner.loss_scale_factor == 3.0


@pytest.mark.parametrize("first", [True, False])
def test_safe_replicas_agree_and_the_natives_do_not(first):
    weights = {}
    for name, arguments in {"native": {}, "safe": {"safe": True}}.items():
        cls = LossScaleOptimizer if arguments else Native
        weight, optimizer, step = on_replicas(cls, **arguments)
        step(*(tf.constant([v]) for v in ((math.inf, 1.0) if first else (1.0, math.inf))))
        weights[name] = float(weight.value.numpy()[0])
        if name == "safe":
            assert float(optimizer.dynamic_scale.value.numpy()) == 2.0
            step(tf.constant([1.0]), tf.constant([2.0]))
            assert float(weight.value.numpy()[0]) == 0.25  # 1 - 0.5 * (1 + 2) / 2
    assert weights["safe"] == 1.0
    assert weights["native"] == (1.0 if first else -math.inf)


# --- the defects, and their cure


def collapse(optimizer, overflows):
    """Return a weight after ``overflows`` bad steps and one good step with scaled gradient."""
    weight = keras.Variable([1.0])
    optimizer.build([weight])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            scaled = optimizer.scale_loss(tf.reduce_sum(weight.value * x))
        optimizer.apply([tape.gradient(scaled, weight.value)], [weight])

    for _ in range(overflows):
        step(tf.constant([math.inf]))
    step(tf.constant([0.5]))
    return float(weight.value[0]), optimizer


@pytest.mark.parametrize("cls", [Native, LossScaleOptimizer])
def test_f3_scale_zero_writes_non_finite_weights(cls):
    # The gradient of a loss times 0 is 0: finite, so Keras divides it by 0.
    weight, optimizer = collapse(cls(keras.optimizers.SGD(0.5), initial_scale=2.0**-100), 30)
    assert float(optimizer.dynamic_scale.value) == 0.0
    assert math.isnan(weight)


def test_f3_is_cured():
    weight, optimizer = collapse(LossScaleOptimizer(keras.optimizers.SGD(0.5), safe=True), 300)
    assert float(optimizer.dynamic_scale.value) == 1.0
    assert weight == 0.75


@pytest.mark.parametrize("cls", [Native, LossScaleOptimizer])
def test_f4_scale_inf_never_returns(cls):
    optimizer = cls(keras.optimizers.SGD(0.5), initial_scale=2.0**127, dynamic_growth_steps=1)
    weight = keras.Variable([1.0])
    optimizer.apply([tf.constant([0.0])], [weight])
    assert float(optimizer.dynamic_scale.value) == math.inf
    for _ in range(50):
        optimizer.apply([tf.constant([math.nan])], [weight])  # inf * 0 in the backward pass
    assert float(optimizer.dynamic_scale.value) == math.inf


def test_f4_is_cured():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5), dynamic_growth_steps=1, safe=True)
    weight = keras.Variable([1.0])
    for _ in range(40):
        optimizer.apply([tf.constant([0.0])], [weight])
    assert float(optimizer.dynamic_scale.value) == 2.0**24


@pytest.mark.parametrize("dead", [0.0, math.inf, 2.0**-140, 2.0**100])
def test_safe_recovers_from_a_dead_scale_that_was_loaded(dead):
    native = Native(keras.optimizers.SGD(0.5))
    safe = LossScaleOptimizer(keras.optimizers.SGD(0.5), safe=True)
    weight = keras.Variable([1.0])
    for optimizer in (native, safe):
        optimizer.build([weight])
    native.dynamic_scale.assign(dead)
    store = {}
    native.save_own_variables(store)
    safe.load_own_variables(store)
    value, safe = collapse_built(safe, weight)
    assert value == 0.75
    assert 1.0 <= float(safe.dynamic_scale.value) <= 2.0**24


def collapse_built(optimizer, weight):
    with tf.GradientTape() as tape:
        scaled = optimizer.scale_loss(tf.reduce_sum(weight.value * 0.5))
    optimizer.apply([tape.gradient(scaled, weight.value)], [weight])
    return float(weight.value[0]), optimizer


def test_safe_scales_a_float16_loss_in_float32():
    loss = tf.constant(4.0, tf.float16)
    assert math.isinf(float(Native(keras.optimizers.SGD()).scale_loss(loss)))
    safe = LossScaleOptimizer(keras.optimizers.SGD(), safe=True)
    assert float(safe.scale_loss(loss)) == 4 * 2.0**15
    assert safe.scale_loss(loss).dtype == tf.float32


def test_safe_sees_what_the_division_overflows():
    big = tf.constant([3e38])
    weights = {}
    for name, optimizer in {
        "native": Native(keras.optimizers.SGD(1.0), initial_scale=0.25),
        "safe": LossScaleOptimizer(keras.optimizers.SGD(1.0), safe=True),
    }.items():
        weight = keras.Variable([1.0])
        optimizer.build([weight])
        optimizer.dynamic_scale.assign(0.25)
        optimizer.apply([big], [weight])
        weights[name] = float(weight.value[0])
    assert weights["native"] == -math.inf
    assert math.isfinite(weights["safe"])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_safe_follows_the_cores_rule(compiled):
    from mpcore import LossScale
    from mpcore.scaling.transition import advance, initial_state

    rule = LossScale(init_scale=2.0**22, growth_interval=2)
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.0), 2.0**22, 2, safe=True)
    weight = keras.Variable([1.0])
    optimizer.build([weight])

    def step(grad):
        optimizer.apply([grad])

    step, state = tf.function(step) if compiled else step, initial_state(rule)
    for bad in [*PATTERNS["seldom"], *[True] * 30, *PATTERNS["often"]]:
        step(tf.constant([math.nan if bad else 1.0]))
        state = advance(rule, state, not bad)
        assert float(optimizer.dynamic_scale.value) == state.scale
        assert int(optimizer.step_counter.value) == state.good_steps


def test_safe_trains_in_fit_and_leaves_sparse_and_overwritten_alone():
    table = keras.Variable(np.ones((4, 2)), dtype="float32")
    amax = keras.Variable([1.0])
    amax.overwrite_with_gradient = True
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5), 4.0, safe=True)
    optimizer.build([table, amax])
    grad = tf.IndexedSlices(tf.fill((3, 2), 8.0), tf.constant([0, 2, 0]), (4, 2))
    optimizer.apply([grad, tf.constant([7.0])], [table, amax])
    assert table.value.numpy()[:, 0].tolist() == [-1.0, 1.0, 0.0, 1.0]
    assert amax.value.numpy().tolist() == [7.0]


# --- Keras 2


def legacy_loop(optimizer, x, compiled):
    weight = keras.Variable([1.0])
    optimizer.build([weight])

    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.get_scaled_loss(tf.reduce_sum(weight.value * x))
        grads = optimizer.get_unscaled_gradients(tape.gradient(loss, [weight.value]))
        optimizer.apply_gradients(zip(grads, [weight], strict=True))

    step = tf.function(step) if compiled else step
    for value in x:
        step(tf.constant([value]))
    return float(weight.value[0])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_loop_of_keras_2_trains(compiled):
    optimizer = Legacy(keras.optimizers.SGD(0.5), initial_scale=64, dynamic_growth_steps=2)
    assert legacy_loop(optimizer, [0.5, math.inf, 0.25, 0.25], compiled) == 0.5
    assert float(optimizer.loss_scale) == 64.0
    assert int(optimizer.iterations.value) == 4  # the skipped step counts
    assert Native(keras.optimizers.SGD()).get_config().keys() != optimizer.get_config().keys()


def test_keras_2_in_fit_scales_and_unscales_once():
    results = []
    for cls in (Legacy, None):
        keras.utils.set_random_seed(2)
        model = keras.Sequential([layers.Input((8,)), layers.Dense(4)])
        inner = keras.optimizers.Adam(1e-2)
        model.compile(cls(inner) if cls else inner, "mse")
        model.fit(X, np.eye(4)[Y], epochs=2, shuffle=False, verbose=0)
        results.append(model.get_weights())
    # Scales are powers of two, so scaling changes no bit of a float32 model without underflow.
    same(*results)


def test_keras_2_after_fit_the_loop_is_not_unscaled_twice():
    optimizer = Legacy(keras.optimizers.SGD(0.5), initial_scale=4.0)
    weight = keras.Variable([1.0])
    optimizer.scale_loss(tf.constant(1.0))
    optimizer.apply_gradients([(tf.constant([4.0]), weight)])
    assert float(weight.value[0]) == 0.5
    optimizer.apply_gradients([(tf.constant([0.5]), weight)])
    assert float(weight.value[0]) == 0.25


def test_keras_2_fixed_scale():
    optimizer = Legacy(keras.optimizers.SGD(0.5), dynamic=False, initial_scale=8)
    assert legacy_loop(optimizer, [0.5, 0.5], compiled=False) == 0.5
    assert (optimizer.dynamic_counter, optimizer.dynamic_growth_steps) == (None, None)
    assert float(optimizer.loss_scale) == 8.0
    assert math.isnan(legacy_loop(optimizer.from_config(optimizer.get_config()), [math.nan], False))


def test_keras_2_file_round_trip(tmp_path):
    model = keras.Sequential([layers.Input((8,)), layers.Dense(4)])
    model.compile(Legacy(keras.optimizers.Adam(), initial_scale=32, dynamic_growth_steps=1), "mse")
    model.fit(X, np.eye(4)[Y], verbose=0)
    model.save(tmp_path / "legacy.keras")
    read = keras.saving.load_model(tmp_path / "legacy.keras").optimizer
    assert type(read) is Legacy
    same(values(read), values(model.optimizer))
    assert read.get_config() == model.optimizer.get_config()


def test_keras_2_takes_a_function_and_gives_none_back():
    optimizer = Legacy(keras.optimizers.SGD(), initial_scale=4.0)
    loss = optimizer.get_scaled_loss(lambda: tf.constant(2.0, tf.float16))
    assert (float(loss()), loss().dtype) == (8.0, tf.float16)
    assert optimizer.dynamic_counter == 0
    assert optimizer.get_unscaled_gradients([None]) == [None]
    sparse = tf.IndexedSlices(tf.constant([[4.0]]), tf.constant([1]), (2, 1))
    (grad,) = optimizer.get_unscaled_gradients([sparse])
    assert grad.values.numpy().tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        pytest.param({"inner_optimizer": 3}, TypeError, "`inner_optimizer` must be", id="inner"),
        pytest.param({"dynamic": "dynamic"}, TypeError, "`dynamic` must be", id="dynamic"),
        pytest.param({"dynamic": False}, ValueError, "`initial_scale` must be given", id="fixed"),
        pytest.param(
            {"dynamic": False, "initial_scale": 2, "dynamic_growth_steps": 5},
            ValueError,
            "`dynamic_growth_steps` must be None",
            id="growth",
        ),
    ],
)
def test_keras_2_refuses(arguments, error, match):
    arguments = {"inner_optimizer": keras.optimizers.SGD()} | arguments
    with pytest.raises(error, match=match):
        Legacy(**arguments)


def test_keras_2_refuses_two_wrappers_and_stateless_apply():
    wrapped = Legacy(keras.optimizers.SGD())
    with pytest.raises(TypeError, match="no LossScaleOptimizer wraps"):
        Legacy(wrapped)
    with pytest.raises(BackendError, match="not in Keras 2"):
        wrapped.stateless_apply([], [], [])


def test_namespace_is_complete():
    for name in mixed_precision.__all__:
        assert hasattr(mixed_precision, name)
    assert mixed_precision.global_policy().name == "float32"
