"""Native levels of every framework in tf.keras, dtypes set in the model, and the way back."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import zoo
from harness import covering
from keras import layers
from zoo_tensorflow import ZOO, first_float

import mpcore as mp
from mpcore.policy.policy import PRESETS
from mpcore_tensorflow import TensorflowBackend
from mpcore_tensorflow.layers import MARK

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 6)).astype("f4")
KERAS = ("keras:mixed_float16", "keras:mixed_bfloat16", "keras:float16")
OP_LISTS = tuple(name for name, policy in PRESETS.items() if policy.by == "op")
FOREIGN = tuple(name for name in PRESETS if ":" in name and name not in (*OP_LISTS, *KERAS))


def under(policy, build):
    """Return what ``build`` makes while Keras' own global policy is ``policy``."""
    keras.config.set_dtype_policy(policy)
    try:
        return build()
    finally:
        keras.config.set_dtype_policy("float32")


def shaken(model):
    """Return the model with weights that no 16-bit format holds exactly, scales included."""
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        noise = 0.1 * rng.normal(size=variable.shape)
        variable.assign(variable.numpy() + noise.astype("f4"))
    return model


def sgd():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def arrays(values):
    dense = [None if v is None else tf.cast(tf.convert_to_tensor(v), tf.float32) for v in values]
    return [None if v is None else v.numpy() for v in dense]


def backward(model, loss):
    """Return the losses, each with its gradients; ``loss`` is a function or a dict of them."""
    found = []
    for function in loss.values() if isinstance(loss, dict) else [loss]:
        with tf.GradientTape() as tape:
            value = function()
            scaled = tf.cast(value, tf.float32) * 256.0
        found += [value, *tape.gradient(scaled, [v.value for v in model.trainable_variables])]
    return arrays(found)


def assert_equal(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other)


def went(seen, plan):
    kept = [row.path for row in plan.layers if row.category != "container" or not row.path]
    return {path: seen[path][1] for path in kept}


# --- Keras' own levels ------------------------------------------------------------------------


@pytest.mark.parametrize("level", KERAS)
@pytest.mark.parametrize("name", zoo.NAMES)
def test_level_equals_keras_own_bit_for_bit(name, level):
    # The statistics of keras:float16 stay float32 here, Keras keeps them in float16: that shows
    # in evaluation mode after training, not in a training pass.
    entry = ZOO[name]
    batch = entry.batch(zoo.generator(name))
    ours = shaken(entry.build())
    native = under(level.removeprefix("keras:"), entry.build)
    native.set_weights(ours.get_weights())
    amp = mp.prepare(ours, sgd(), level)

    if name == "gpt" and level != "keras:float16":
        # Keras' ReversibleEmbedding has autocast off, and a model around it lends it no scope:
        # called in reverse it multiplies in float32. Called alone, and here, it is float16.
        outputs = [model(batch[0], training=False) for model in (ours, native)]
        assert [x.dtype.name for x in outputs] == [PRESETS[level].compute, "float32"]
        np.testing.assert_allclose(*[tf.cast(x, "float32") for x in outputs], atol=0.05)
        return
    dtypes = [[v.dtype for v in model.trainable_variables] for model in (ours, native)]
    assert dtypes[0] == dtypes[1]
    runs = []
    for model in (ours, native):
        loss = entry.loss(model)
        tensors = entry.tensors(batch)
        each = loss if isinstance(loss, dict) else {"": loss}
        calls = {key: lambda f=f, xs=tensors: f(*xs) for key, f in each.items()}
        runs.append(backward(model, calls))
    assert_equal(*runs)
    assert any(np.any(value) for value in runs[0][1:] if value is not None)
    outputs = [model(batch[0], training=False) for model in (ours, native)]
    if level != "keras:float16" or not any("moving" in v.path for v in ours.weights):
        assert_equal(*[[x.numpy()] for x in outputs])
    seen = [entry.seen(model, None, *batch) for model in (ours, native)]
    assert went(seen[0], amp.plan) == went(seen[1], amp.plan)


@pytest.mark.parametrize("level", KERAS)
def test_composite_layers_equal_keras_own(level):
    def build():
        keras.utils.set_random_seed(0)
        x = layers.Input((5, 8))
        y = layers.MultiHeadAttention(2, 4, name="attention")(x, x)
        y = layers.Bidirectional(layers.LSTM(4, return_sequences=True), name="both")(y)
        y = layers.TimeDistributed(layers.Dense(3), name="each")(y)
        return keras.Model(x, layers.SeparableConv1D(2, 3, name="separable")(y))

    ours = shaken(build())
    native = under(level.removeprefix("keras:"), build)
    native.set_weights(ours.get_weights())
    mp.prepare(ours, sgd(), level)
    x = RNG.normal(size=(2, 5, 8)).astype("f4")
    runs = []
    for model in (ours, native):
        outputs = model(x, training=True)
        assert outputs.dtype == PRESETS[level].compute
        loss = backward(model, lambda model=model: tf.reduce_mean(model(x, training=True) ** 2))
        runs.append([outputs.numpy(), *loss])
    assert_equal(*runs)


def test_level_set_after_fit_works():
    # Keras: `layer.dtype_policy = ...` after fit is ignored until the next compile.
    def build():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([layers.Input((6,)), layers.Dense(4, name="a"), layers.Dense(1)])
        model.compile(sgd(), "mse")
        model.fit(X, X[:, :1], epochs=2, verbose=0)
        return model

    native = build()
    traced = []
    original = native.get_layer("a").call
    for layer in native.layers:
        layer.dtype_policy = "mixed_float16"
    native.get_layer("a").call = lambda x: traced.append(x.dtype) or original(x)
    native.fit(X, X[:, :1], verbose=0)
    assert not traced  # the graph of before still runs, in float32

    model = build()
    amp = mp.prepare(model, model.optimizer, "keras:mixed_float16")
    model.compile(amp.optimizer, "mse")
    layer = model.get_layer("a")
    call = layer.call

    def watched(x, **kwargs):
        traced.append(call(x, **kwargs).dtype)
        return call(x, **kwargs)

    with amp.unguarded():
        layer.call = watched
    before = layer.kernel.numpy()
    model.fit(X, X[:, :1], verbose=0)
    assert set(traced) == {tf.float16}
    assert amp.state.skipped_steps == 0
    assert not np.array_equal(before, layer.kernel.numpy())


# --- dtypes that were set in the model --------------------------------------------------------


def headed(head=None, body=None):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(8, name="fc1", dtype=body),
            layers.ReLU(name="act"),
            layers.Dense(8, name="fc2"),
            layers.Dense(3, name="head", dtype=head),
        ]
    )


def outputs_of(model, x=X):
    """Return the dtype that every layer hands on."""
    seen = {}
    for layer in model.layers:
        original = layer.call

        def call(*args, original=original, name=layer.name, **kwargs):
            outputs = original(*args, **kwargs)
            seen[name] = first_float(outputs)
            return outputs

        vars(layer)["call"] = call  # past the guard: a look, no change
    model(x, training=False)
    return seen


def test_full_head_of_a_mixed_model_stays_full():
    model = under("mixed_float16", lambda: headed(head="float32"))
    native = under("mixed_float16", lambda: headed(head="float32"))
    plan = mp.explain(model, "mixed_float16")
    assert plan["head"].rule == "set in the model: float32"
    assert {row.path for row in plan.layers if "set in the model" in row.rule} == {"head"}
    amp = mp.prepare(model, sgd(), "mixed_float16")
    np.testing.assert_array_equal(model(X).numpy(), native(X).numpy())
    # told from the layers as the user left them, not as we made them
    assert mp.explain(model, "mixed_float16") == amp.plan
    lowered = mp.Policy.named("mixed_float16").lower("head")
    assert mp.explain(model, lowered)["head"].compute == "float16"
    assert outputs_of(model) == {
        "fc1": "float16", "act": "float16", "fc2": "float16", "head": "float32"
    }  # fmt: skip


def test_mixed_layer_of_a_full_model_gets_the_loss_scale():
    native = headed(body="mixed_float16")
    native.compile(sgd(), "mse")
    assert not isinstance(native.optimizer, keras.optimizers.LossScaleOptimizer)  # silently

    model = headed(body="mixed_float16")
    plan = mp.explain(model, "float32, loss_scale=dynamic(init_scale=1024)")
    assert plan["fc1"].rule == "set in the model: float16"
    assert plan["fc2"].compute == "float32"
    amp = mp.prepare(model, sgd(), plan.policy)
    np.testing.assert_array_equal(model(X).numpy(), native(X).numpy())
    # Gradients of 2e-8 are under float16's least number; the scale keeps them.
    result = amp.step(lambda x: tf.reduce_sum(model(x)) * 2e-8, X, keep_grads=True)
    assert result.stepped
    assert amp.scale == 1024
    assert result.grads["fc1.kernel"].numpy().any()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(native(X)) * 2e-8
    (grad,) = tape.gradient(loss, [native.get_layer("fc1").bias.value])
    true = result.grads["fc1.bias"].numpy()
    assert np.count_nonzero(true) > np.count_nonzero(grad.numpy())


def test_loaded_model_keeps_what_its_user_set(tmp_path):
    under("mixed_float16", lambda: headed(head="float32")).save(tmp_path / "own.keras")
    model = keras.models.load_model(tmp_path / "own.keras")
    plan = mp.explain(model, "mixed_float16")
    assert {row.path for row in plan.layers if "set in the model" in row.rule} == {"head"}
    # After prepare the policies in the file are ours: they are no one's wish.
    policy = mp.Policy.named("mixed_float16").full("fc2")
    model = headed()
    amp = mp.prepare(model, sgd(), policy)
    model.compile(amp.optimizer, "mse")
    model.save(tmp_path / "prepared.keras")
    loaded = keras.models.load_model(tmp_path / "prepared.keras")
    assert mp.explain(loaded, policy) == amp.plan


# --- policies of Keras ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "mixed_float16", "mixed_bfloat16", "float16"])
def test_policy_object_is_read_and_applied(name):
    policy = mp.import_policy(keras.DTypePolicy(name))
    model, native = headed(), under(name, headed)
    native.set_weights(model.get_weights())
    mp.prepare(model, sgd(), policy)
    np.testing.assert_array_equal(model(X).numpy(), native(X).numpy())
    assert [v.dtype for v in model.weights] == [v.dtype for v in native.weights]


def test_policy_map_is_read_and_applied():
    dtypes = keras.dtype_policies.DTypePolicyMap("mixed_float16")
    dtypes["fc2"] = keras.DTypePolicy("float32")
    policy = mp.import_policy(dtypes)
    assert str(policy) == "keras:mixed_float16; float32 path=fc2"
    model = headed()
    mp.prepare(model, sgd(), policy)
    assert outputs_of(model) == {
        "fc1": "float16", "act": "float16", "fc2": "float32", "head": "float16"
    }  # fmt: skip


# --- levels of other frameworks ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "name"),
    covering(FOREIGN, ["mlp", "cnn", "resnet", "encoder"], keep=[("paddle:OD", "encoder")]),
)
def test_foreign_level_trains_and_does_what_its_plan_says(level, name):
    entry = ZOO[name]
    model = entry.build()
    policy = mp.Policy.named(level)
    if policy.scaling.kind == "dynamic":
        policy = policy.with_loss_scale(mp.LossScale(init_scale=128.0))
    amp = mp.prepare(model, sgd(), policy)
    batch = entry.batch(zoo.generator(name))
    before = model.get_weights()
    if (level, name) == ("paddle:OD", "encoder"):
        # The norm hands on float32, the attention float16; TensorFlow's + takes no such pair.
        with pytest.raises(TypeError, match="AddV2"):
            amp.step(entry.loss(model), *entry.tensors(batch))
        return
    result = amp.step(entry.loss(model), *entry.tensors(batch))
    assert result.stepped
    assert np.isfinite(result.loss)
    pairs = zip(before, model.get_weights(), strict=True)
    assert any(not np.array_equal(a, b) for a, b in pairs)
    seen = entry.seen(model, amp, *batch)
    for row in amp.plan.layers:
        if row.category != "container" or not row.path:
            came, out = seen[row.path]
            assert out == (came if row.output == "follow" else row.output), row
            if row.compute not in ("follow", "float32") and row.category != "norm":
                assert came in ("", row.compute), row


@pytest.mark.parametrize("level", OP_LISTS)
def test_levels_of_op_lists_are_refused_with_the_reason(level):
    with pytest.raises(mp.BackendError, match="Keras casts per layer"):
        mp.prepare(headed(), sgd(), level)


# --- what a layer hands on --------------------------------------------------------------------

KINDS = {
    "linear": (layers.Dense(4), (6,)),
    "conv": (layers.Conv1D(4, 3), (6, 3)),
    "conv_transpose": (layers.Conv1DTranspose(4, 3), (6, 3)),
    "recurrent": (layers.LSTM(4), (6, 3)),
    "norm": (layers.LayerNormalization(), (6,)),
    "softmax": (layers.Softmax(), (6,)),
    "activation": (layers.PReLU(), (6,)),
    "pooling": (layers.MaxPooling1D(2), (6, 3)),
    "dropout": (layers.GaussianNoise(0.1), (6,)),
    "reshape": (layers.Flatten(), (6, 3)),
    "other": (layers.Rescaling(0.5), (6,)),
    "attention": (layers.MultiHeadAttention(2, 3), (5, 6)),
}


@pytest.mark.parametrize("came", ["float32", "float16"])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("lower>full", "float32"),
        ("full>lower", "float16"),
        ("full>float16", "float16"),
        ("full", "float32"),
        ("lower", "float16"),
        ("follow", "came"),
        ("follow>full", "float32"),
        ("follow>lower", "float16"),
        ("native", "came"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_output_is_what_the_rule_says(kind, rule, expected, came):
    made, shape = KINDS[kind]
    layer = type(made).from_config({**made.get_config(), "name": "it"})
    x = layers.Input(shape)
    first = layers.Activation("linear", name="first")
    y = first(x)
    y = layer(y, y) if kind == "attention" else layer(y)
    model = keras.Model(x, layers.Dense(1, name="last")(y))
    text = f"mixed_float16; {came} first; {rule} it"
    mp.prepare(model, sgd(), text)
    data = RNG.normal(size=(2, *shape)).astype("f4")
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(data, training=True))
    grads = tape.gradient(loss, [v.value for v in model.trainable_variables])
    assert all(grad is None or grad.dtype == tf.float32 for grad in grads)
    assert outputs_of(model, data)["it"] == (came if expected == "came" else expected)


def test_following_layer_runs_its_weights_in_what_comes_in():
    data = RNG.normal(size=(4, 6)).astype("f4")
    model = headed()
    mp.prepare(model, sgd(), "mixed_bfloat16; float16 fc1; follow fc2")
    model(data)
    low = headed()
    mp.prepare(low, sgd(), "mixed_bfloat16; float16 fc1; float16 fc2")
    np.testing.assert_array_equal(model(data).numpy(), low(data).numpy())


# --- what the model takes and gives -----------------------------------------------------------


class Nested(keras.Model):
    """Takes a dict of tensors, and looks at them itself."""

    def __init__(self):
        super().__init__()
        self.fc = layers.Dense(2, name="fc")

    def call(self, data, more=None):
        self.came = [data["x"].dtype, data["pair"][0].dtype, more.dtype, data["n"].dtype]
        return {"y": self.fc(data["x"]), "pair": [data["pair"][0] + 0.0]}


@pytest.mark.parametrize("level", ["keras:mixed_float16", "mixed_float16", "mindspore:O2"])
def test_inputs_and_outputs_of_the_model_are_what_the_policy_says(level):
    model, policy = Nested(), mp.Policy.named(level)
    data = {"x": tf.constant(X), "pair": (tf.constant(X),), "n": tf.constant([1])}
    model(data, more=tf.constant(X))
    mp.prepare(model, sgd(), policy)
    outputs = model(data, more=tf.constant(X))
    wanted = "float16" if policy.inputs == "cast" else "float32"
    assert [dtype.name if hasattr(dtype, "name") else dtype for dtype in model.came] == [
        wanted, wanted, wanted, "int32"
    ]  # fmt: skip
    assert {x.dtype.name for x in tf.nest.flatten(outputs)} == {policy.output}


@pytest.mark.parametrize(
    ("meaning", "before", "after"),
    [("strict", True, False), ("fast", False, True), ("native", True, True)],
)
def test_float32_means_what_the_policy_says_until_released(meaning, before, after):
    switch = tf.config.experimental.enable_tensor_float_32_execution
    asked = tf.config.experimental.tensor_float_32_execution_enabled
    kept = asked()
    try:
        switch(before)
        amp = mp.prepare(headed(), sgd(), f"mixed_float16, float32={meaning}")
        assert asked() is after
        amp.release()
        assert asked() is before
    finally:
        switch(kept)


# --- neutral ops ------------------------------------------------------------------------------


def test_layers_know_their_neutral_op():
    class Mine(layers.Dense):
        pass

    model = keras.Sequential(
        [
            layers.Input((6,)),
            Mine(4, name="mine"),
            layers.Activation("gelu", name="gelu"),
            layers.Activation(lambda x: x * 2, name="own"),
            layers.BatchNormalization(name="bn"),
            layers.LayerNormalization(name="ln"),
        ]
    )
    found = {layer.path: layer.op for layer in TensorflowBackend().layers(model)}
    assert found == {
        "": "", "mine": "linear", "gelu": "gelu", "own": "", "bn": "batch_norm", "ln": "layer_norm"
    }  # fmt: skip


@pytest.mark.parametrize("base", ["mixed_float16", "model_float16"])
def test_rules_may_name_ops(base):
    model = headed()
    mp.prepare(model, sgd(), f"{base}; full op=linear; lower op=relu")
    assert set(outputs_of(model).values()) == {"float32", "float16"}
    assert {v.dtype for v in model.weights} == {"float32"}


# --- the way back -----------------------------------------------------------------------------


OURS = {"call", "_convert_inputs_to_tensors", MARK}


def state_of(model):
    return [
        (layer.dtype_policy.name, layer.autocast, sorted(OURS & set(vars(layer))))
        for layer in model._flatten_layers()
    ]


RELEASED = [
    "mixed_float16", "mixed_bfloat16", "model_float16", "model_bfloat16", "keras:float16",
    "mindspore:O1", "mindspore:O2", "apex:O2", "torch:half", "mixed_float16; follow layer=*",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "policy"), covering(["mlp", "resnet", "gru", "encoder"], RELEASED)
)
def test_release_gives_the_model_back(name, policy):
    entry = ZOO[name]
    model, fresh = entry.build(), entry.build()
    before = state_of(fresh)
    optimizer, other = sgd(), sgd()
    wanted = mp.Policy.parse(policy)
    if wanted.scaling.kind == "dynamic":
        wanted = wanted.with_loss_scale(mp.LossScale(init_scale=128.0))
    amp = mp.prepare(model, optimizer, wanted)
    batch = entry.batch(zoo.generator(name))
    assert amp.step(entry.loss(model), *entry.tensors(batch)).stepped
    trained = [amp.optimizer.target(v).numpy().astype("f4") for v in model.weights]

    amp.release()
    assert state_of(model) == before
    for value, variable in zip(trained, model.weights, strict=True):
        assert variable.dtype == "float32"
        assert variable.value.dtype == tf.float32
        np.testing.assert_array_equal(variable.numpy(), value)
    fresh.set_weights(trained)
    for training in (False, True):
        outputs = [m(batch[0], training=training).numpy() for m in (model, fresh)]
        np.testing.assert_array_equal(*outputs)

    # The optimizer goes on natively with its slots; another one, with the same state, agrees.
    other.build(fresh.trainable_variables)
    for slot, mine in zip(other.variables, optimizer.variables, strict=True):
        assert mine.dtype == slot.dtype
        slot.assign(mine.numpy())
    fresh.set_weights(model.get_weights())
    for each, moves in ((model, optimizer), (fresh, other)):
        loss = entry.loss(each)
        with tf.GradientTape() as tape:
            value = loss(*entry.tensors(batch))
        grads = tape.gradient(value, [v.value for v in each.trainable_variables])
        moves.apply_gradients(zip(grads, each.trainable_variables, strict=True))
    for mine, theirs in zip(model.get_weights(), fresh.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("policy", ["mixed_float16", "model_float16"])
def test_released_amp_refuses_everything(policy):
    model, optimizer = headed(), sgd()
    amp = mp.prepare(model, optimizer, policy)
    model.compile(amp.optimizer, "mse")
    with pytest.raises(mp.BackendError, match=r"tf\.function"):
        tf.function(amp.release, autograph=False)()
    assert amp.step(lambda x: tf.reduce_mean(model(x)), X).stepped
    wrapper = amp.optimizer
    amp.release()
    before = model.get_weights()
    grads = [tf.ones(v.shape) for v in model.trainable_variables]
    for refused in (
        lambda: amp.step(lambda x: tf.reduce_mean(model(x)), X),
        lambda: amp.gradient(model, X),
        lambda: wrapper.apply(grads, model.trainable_variables),
    ):
        with pytest.raises(mp.BackendError, match=r"after amp\.release"):
            refused()
    assert_equal(before, model.get_weights())
    assert model.optimizer is optimizer
    model.fit(X, X[:, :3], verbose=0)
    assert all(not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


@pytest.mark.parametrize("then", ["mixed_bfloat16", "model_bfloat16"])
def test_released_model_can_be_prepared_anew(then):
    model, optimizer = headed(), sgd()
    mp.prepare(model, optimizer, "model_float16").release()
    amp = mp.prepare(model, optimizer, then)
    assert amp.step(lambda x: tf.reduce_mean(model(x)), X).stepped
    with pytest.raises(mp.BackendError, match=r"prepared twice|must hold float32"):
        mp.prepare(model, sgd(), then)
