"""What other people's code does to a prepared Keras model: it is protected, or refused."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.backend("tensorflow"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow"),
]
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from keras_nets import CROSS_ENTROPY, X, Y, arrays, differing, loss_of, net  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore.errors import BackendError, GuardError  # noqa: E402

POLICIES = ("mixed_float16", "model_bfloat16")


def prepared(policy="mixed_float16", make=net):
    model = make()
    return model, mp.prepare(model, keras.optimizers.SGD(0.1, momentum=0.9), policy)


def native_step(model, optimizer, scale=lambda loss: loss):
    with tf.GradientTape() as tape:
        loss = scale(loss_of(model)(X, Y))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))


class OwnApply(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        for grad, variable in zip(grads, trainable_variables, strict=True):
            variable.assign_sub(tf.cast(grad, variable.dtype))


def optimizers(amp):
    class Later(OwnApply):
        def apply(self, grads, trainable_variables=None):
            trainable_variables[0].assign(trainable_variables[0] * 0)

    yield "own apply", OwnApply(0.1)
    yield "own apply of a class made later", Later(0.1)
    inner = amp.optimizer.inner_optimizer
    yield "its own", inner
    yield "another", keras.optimizers.Adam()
    yield "scaled", keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    yield "on top", keras.optimizers.LossScaleOptimizer(amp.optimizer)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_of_its_own_is_refused(policy, compiled):
    model, amp = prepared(policy, partial(net, norm=False))
    before = arrays(model, amp)
    for name, optimizer in optimizers(amp):
        step = partial(native_step, model, optimizer)
        with pytest.raises(GuardError, match=r"amp\.step.*optimizer=amp\.optimizer.*unguarded"):
            (tf.function(step) if compiled else step)()
        assert not differing(before, arrays(model, amp)), name
    if policy == "mixed_float16":  # else Keras itself refuses: the optimizer moves the copies
        with amp.unguarded():
            native_step(model, amp.optimizer.inner_optimizer)
        assert differing(before, arrays(model, amp))


@pytest.mark.parametrize("eagerly", [False, True])
def test_fit_with_another_optimizer_is_refused(eagerly):
    model, amp = prepared()
    before = arrays(model, amp)
    bare = amp.optimizer.inner_optimizer
    for optimizer in (bare, "adam", keras.optimizers.LossScaleOptimizer(amp.optimizer)):
        with pytest.raises(GuardError, match=r"model\.compile"):
            model.compile(optimizer=optimizer, loss=CROSS_ENTROPY)
        with pytest.raises(GuardError, match=r"model\.compile"):
            model.compile(optimizer, CROSS_ENTROPY)
    model.compile(loss=CROSS_ENTROPY, run_eagerly=eagerly)  # to evaluate
    model.evaluate(X, Y, verbose=0)
    for train in (partial(model.fit, verbose=0), model.train_on_batch):
        with pytest.raises(GuardError, match="a bare RMSprop"):
            train(X, Y)
    assert not differing(before, arrays(model, amp))


def test_compiled_with_the_bare_optimizer_before():
    model = net()
    bare = keras.optimizers.SGD(0.1)
    model.compile(optimizer=bare, loss=CROSS_ENTROPY)
    model.fit(X, Y, verbose=0)  # compiled, and traced
    amp = mp.prepare(model, bare, "mixed_float16")
    before = arrays(model, amp)
    with pytest.raises(GuardError, match="a bare SGD"):
        model.fit(X, Y, verbose=0)
    assert not differing(before, arrays(model, amp))
    model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
    model.fit(X, Y, verbose=0)
    assert differing(before, arrays(model, amp))


class Custom(keras.Model):
    def __init__(self, optimizer):
        super().__init__()
        self.fc = keras.layers.Dense(3)
        self.own = optimizer

    def call(self, x, training=None):
        return self.fc(x)

    def train_step(self, data):
        native_step(self, self.own)
        return {}


def test_a_train_step_of_its_own_is_asked_too():
    model = Custom(keras.optimizers.SGD(0.1))
    model(X)
    amp = mp.prepare(model, model.own, "mixed_float16")
    before = arrays(model, amp)
    model.compile(loss=CROSS_ENTROPY)
    with pytest.raises(GuardError, match="a bare SGD"):
        model.fit(X, Y, verbose=0)
    assert not differing(before, arrays(model, amp))


def test_a_prepared_part_of_a_larger_model():
    part, amp = prepared(make=partial(net, norm=False))
    whole = keras.Sequential([keras.layers.Input((6,)), part, keras.layers.Dense(3)])
    whole.compile("sgd", CROSS_ENTROPY)
    before = arrays(part, amp)
    with pytest.raises(GuardError, match="a bare SGD"):
        whole.fit(X, Y, verbose=0)
    assert not differing(before, arrays(part, amp))
    part.trainable = False
    whole.compile("sgd", CROSS_ENTROPY)
    whole.fit(X, Y, verbose=0)
    assert not differing(before, arrays(part, amp))


def test_a_layer_of_two_prepared_models_is_refused():
    model, amp = prepared("model_bfloat16")
    before = arrays(model, amp)
    other = keras.Sequential([keras.layers.Input((6,)), model.get_layer("fc1")])
    for optimizer in (keras.optimizers.SGD(0.1), None):
        with pytest.raises(BackendError, match=r"fc1/kernel is in .*release\(\)"):
            mp.prepare(other, optimizer, "mixed_float16")
    assert not differing(before, arrays(model, amp))
    assert amp.step(loss_of(model), X, Y).stepped
    amp.release()
    mp.prepare(other, keras.optimizers.SGD(0.1), "mixed_float16")


def test_a_loss_that_was_not_scaled():
    model, amp = prepared()
    before = arrays(model, amp)
    for compiled in (False, True):
        step = partial(native_step, model, amp.optimizer)
        with pytest.raises(GuardError, match=r"not scaled.*amp\.optimizer\.scale_loss"):
            (tf.function(step) if compiled else step)()
    # The eager forward pass alone has moved BatchNorm's statistics.
    assert all("moving" in name for name in differing(before, arrays(model, amp)))
    for compiled in (False, True):
        step = partial(native_step, model, amp.optimizer, amp.optimizer.scale_loss)
        (tf.function(step) if compiled else step)()
        with pytest.raises(GuardError, match="not scaled"):  # again, after one that was
            native_step(model, amp.optimizer)


def test_a_loss_that_does_not_reach_the_model():
    model, amp = prepared()
    other = net()
    before = arrays(model, amp)
    for loss_fn in (loss_of(other), lambda x, y: tf.reduce_mean(x)):
        with pytest.raises(BackendError, match="`loss_fn` must depend on the trainable weights"):
            amp.step(loss_fn, X, Y)
    assert not differing(before, arrays(model, amp))
    assert amp.state.good_steps == 0


def changes(model):
    dense = model.get_layer("fc1")
    yield "dtype_policy", lambda: setattr(dense, "dtype_policy", "float16")
    yield "dtype_policy", lambda: setattr(model, "dtype_policy", "mixed_float16")
    yield "call", lambda: setattr(dense, "call", lambda x: x)
    yield "autocast", lambda: setattr(dense, "autocast", False)
    yield "`add`", lambda: model.add(keras.layers.Dense(3))
    yield "`pop`", model.pop
    yield "`quantize`", lambda: model.quantize("int8")
    yield "`quantize`", lambda: dense.quantize("int8")
    yield "`enable_lora`", lambda: dense.enable_lora(2)


def test_the_plan_is_kept():
    model, amp = prepared()
    before, plan = arrays(model, amp), [one.dtype_policy.name for one in model.layers]
    for what, change in changes(model):
        with pytest.raises(GuardError, match=what):
            change()
    assert plan == [one.dtype_policy.name for one in model.layers]
    assert not differing(before, arrays(model, amp))
    keras.config.set_dtype_policy("mixed_float16")  # an outer policy is that of later layers
    try:
        assert amp.step(loss_of(model), X, Y).stepped
        model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
        model.fit(X, Y, verbose=0)
        assert model.optimizer is amp.optimizer
    finally:
        keras.config.set_dtype_policy("float32")
    assert plan == [one.dtype_policy.name for one in model.layers]


def test_a_layer_of_a_subclassed_model_is_not_exchanged():
    model = Custom(keras.optimizers.SGD(0.1))
    model(X)
    mp.prepare(model, model.own, "mixed_float16")
    with pytest.raises(GuardError, match=r"`fc`.*exchanged"):
        model.fc = keras.layers.Dense(3)
    with pytest.raises(GuardError, match=r"`head`.*exchanged"):
        model.head = keras.layers.Dense(3)
    model.fc = model.fc  # the same


def test_parameters_in_64_bits_are_refused_with_the_way_out():
    dense = keras.layers.Dense(3, name="fc", dtype="float64")
    model = keras.Sequential([keras.layers.Input((6,)), dense])
    with pytest.raises(BackendError, match=r"fc\.kernel is float64.*dtype='float32' and set its"):
        mp.prepare(model, keras.optimizers.SGD(0.1), "mixed_bfloat16")


def test_graph_rewriting_beside_a_plan():
    option = tf.config.optimizer.set_experimental_options
    model, amp = prepared()
    option({"auto_mixed_precision_onednn_bfloat16": True})
    try:
        with pytest.raises(GuardError, match=r"set_experimental_options.*False"):
            amp.step(loss_of(model), X, Y)
        model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
        with pytest.raises(GuardError, match="set_experimental_options"):
            model.fit(X, Y, verbose=0)
        with pytest.raises(GuardError, match="set_experimental_options"):
            prepared()
    finally:
        option({"auto_mixed_precision_onednn_bfloat16": False})
    assert amp.step(loss_of(model), X, Y).stepped


@pytest.mark.parametrize("policy", POLICIES)
def test_copies_are_refused_or_unprepared(policy):
    model, amp = prepared(policy)
    for make in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(GuardError, match=r"clone_model.*model\.save"):
            make(model)
    for clone in (keras.models.clone_model(model), model.from_config(model.get_config())):
        assert {one.dtype_policy.name for one in clone.layers} == {"float32"}
        clone.set_weights(model.get_weights())
        clone.compile("sgd", CROSS_ENTROPY)
        clone.fit(X, Y, verbose=0)  # it is not prepared, and nothing of it is lowered
    assert amp.step(loss_of(model), X, Y).stepped


def test_nothing_is_left_after_release():
    def state(model):
        found = [(one, set(vars(one))) for one in model._flatten_layers()]
        variables = [(v, set(vars(v))) for v in model.variables]
        return found + variables

    for policy in POLICIES:
        model, optimizer = net(), keras.optimizers.SGD(0.1)
        before = state(model)
        amp = mp.prepare(model, optimizer, policy)
        amp.step(loss_of(model), X, Y)
        amp.release()
        unchanged = {"_mpcore_original", "_mpcore_guard", "_setattr_hook", "get_config", "compile"}
        for (thing, then), (_, now) in zip(before, state(model), strict=True):
            assert not (now - then) & unchanged, thing
        native_step(model, optimizer)
        model.compile(optimizer, CROSS_ENTROPY)
        model.fit(X, Y, verbose=0)
        model.get_layer("fc1").dtype_policy = "mixed_bfloat16"
        assert pickle.loads(pickle.dumps(model)).built


def the_guard_ends_with_the_last_prepared_model():
    """In a process of its own: models that other tests prepared may still live in this one."""
    kinds = (*keras.optimizers.Adam.__mro__, OwnApply)
    native = {kind: vars(kind)["apply"] for kind in kinds if "apply" in vars(kind)}
    assert len(native) == 2
    assert not any(hasattr(apply, "__wrapped__") for apply in native.values())
    amps = [prepared()[1] for _ in range(2)]
    amps[0].release()
    with pytest.raises(GuardError):
        native_step(amps[1].model, keras.optimizers.SGD(0.1))
    native_step(amps[0].model, keras.optimizers.SGD(0.1))
    amps[1].release()
    assert all(vars(kind)["apply"] is apply for kind, apply in native.items())
    print("it ended")


def test_the_guard_ends_with_the_last_prepared_model():
    script = (
        "import sys\n"
        f"sys.path[:0] = {sys.path!r}\n"
        f"import {Path(__file__).stem} as tests\n"
        "tests.the_guard_ends_with_the_last_prepared_model()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.strip() == "it ended", run.stderr[-2000:]


def headed(head, body=None):
    dense = keras.layers.Dense(3, name="head", dtype=head)
    hidden = [keras.layers.Dense(8, name="fc1", dtype=body), keras.layers.ReLU(name="act")]
    return keras.Sequential([keras.layers.Input((6,)), *hidden, dense])


def test_a_float32_layer_of_a_float32_model_is_told(recwarn):
    """Keras keeps no record of it: it is lowered, and said with the rule that keeps it."""
    policy = mp.Policy.named("mixed_float16")
    with pytest.warns(mp.MpcoreWarning, match=r"head may have.*policy\.full\('head'\) keeps"):
        mp.prepare(headed("float32"), keras.optimizers.SGD(), policy)
    for model, rules in (
        (headed("float32"), policy.full("head")),
        (headed("float32"), policy.lower("head")),
        (headed("float32"), "mixed_float16; follow head"),
        (headed(None), policy),
        (headed("float32"), "float32"),
        (headed("float32", body="float32"), policy),  # most are: that is how it was built
        (keras.models.clone_model(headed("float32")), policy),  # each has a policy of its own
    ):
        mp.prepare(model, keras.optimizers.SGD(), rules)
    assert not [one for one in recwarn if issubclass(one.category, mp.MpcoreWarning)]


def test_keras_on_another_backend_is_one_clear_error():
    script = (
        "import keras, mpcore as mp\n"
        "model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])\n"
        "for call in (lambda: mp.prepare(model, keras.optimizers.SGD(), 'mixed_float16'),\n"
        "             lambda: mp.explain(model, 'mixed_float16')):\n"
        "    try:\n"
        "        call()\n"
        "    except mp.BackendError as error:\n"
        "        print(error)\n"
    )
    variables = {**os.environ, "KERAS_BACKEND": "torch", "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run(
        [sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=True
    )
    lines = run.stdout.splitlines()
    assert len(lines) == 2
    assert all("Keras on torch: start it with KERAS_BACKEND=tensorflow" in line for line in lines)


def test_a_custom_gradient_sees_gradients_times_the_scale():
    seen = {}
    for scale in (1, 64):
        model, found = net(), tf.Variable(0.0)
        amp = mp.prepare(model, keras.optimizers.SGD(0.1), f"mixed_bfloat16, loss_scale={scale}")

        @tf.custom_gradient
        def heard(out, found=found):
            return tf.identity(out), lambda grad: (found.assign(tf.norm(grad)), grad)[1]

        amp.step(lambda x, y, model=model, heard=heard: CROSS_ENTROPY(y, heard(model(x))), X, Y)
        seen[scale] = float(found)
    assert seen[64] / seen[1] == pytest.approx(64, rel=0.02)
