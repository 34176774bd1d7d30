"""Checkpoints in bfloat16 and float16: trained variables are widened, frozen ones stay."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pytestmark = [
    pytest.mark.backend("tensorflow"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow"),
]
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from keras_nets import CROSS_ENTROPY, loss_of  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore.errors import BackendError, MpcoreWarning  # noqa: E402

layers = keras.layers
MODEL = ("model_bfloat16", "model_bfloat16, master=split", "model_bfloat16, master=none")
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16, loss_scale=static(64)", *MODEL)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 20, (16, 5)).astype("i4")
Y = RNG.integers(0, 3, 16).astype("i4")


def net(dtype, *, lora=False):
    """An embedding, attention, a convolution, two norms, Dense layers."""
    keras.utils.set_random_seed(0)
    tokens = keras.Input((5,), dtype="int32")
    h = layers.Embedding(20, 8, dtype=dtype, name="emb")(tokens)
    h = layers.LayerNormalization(dtype=dtype, name="ln")(h)
    h = layers.MultiHeadAttention(2, 4, dtype=dtype, name="attn")(h, h)
    h = layers.Conv1D(8, 3, dtype=dtype, name="conv")(h)
    h = layers.BatchNormalization(dtype=dtype, name="bn")(h)
    h = layers.Flatten(dtype=dtype, name="flat")(h)
    h = layers.Dense(8, activation="relu", dtype=dtype, name="base")(h)
    model = keras.Model(tokens, layers.Dense(3, dtype=dtype, name="head")(h))
    if lora:
        for layer in model.layers:
            layer.trainable = False
        base = model.get_layer("base")
        base.trainable = True
        base.enable_lora(2)
        base.bias.trainable = False
        model.get_layer("head").trainable = True
        model.get_layer("head").kernel.trainable = False
    return model


def widened(model, *, lora):
    other = net("float32", lora=lora)
    for to, value in zip(other.variables, model.variables, strict=True):
        to.assign(tf.cast(value.value, to.dtype))
    return other


def adam_or_sgd(policy):
    """Keras' Adam does not move 16-bit variables: its 0.999 is 1 there."""
    none = "master=none" in policy
    return keras.optimizers.SGD(1.0) if none else keras.optimizers.Adam(1e-2)


def ready(model, policy, optimizer=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MpcoreWarning)  # that the parameters are widened
        return mp.prepare(model, optimizer or adam_or_sgd(policy), policy)


def train(amp, steps=3):
    loss_fn = loss_of(amp.model)
    for _ in range(steps):
        assert amp.step(loss_fn, TOKENS, Y).stepped


def check_same(one, other):
    for (path, a), (_, b) in zip(one._floats(), other._floats(), strict=True):
        np.testing.assert_array_equal(one.master_values(a), other.master_values(b), path)


@pytest.mark.parametrize(
    ("policy", "dtype"), [*((p, "bfloat16") for p in POLICIES), ("mixed_bfloat16", "float16")]
)
def test_a_trained_checkpoint_trains_as_its_float32_copy_bit_for_bit(policy, dtype):
    model = net(dtype)
    own, float32 = ready(widened(model, lora=False), policy), ready(model, policy)
    before = own.weights()
    train(own)
    train(float32)
    check_same(own, float32)
    assert own.array_bytes() == float32.array_bytes()
    assert any((own.weights()[path] != before[path]).any() for path in before)


@pytest.mark.parametrize(
    ("policy", "dtype"), [*((p, "bfloat16") for p in POLICIES), ("mixed_bfloat16", "float16")]
)
def test_a_frozen_base_keeps_its_bytes_and_bits_and_computes_as_float32(policy, dtype):
    model = net(dtype, lora=True)
    low = [v for v in model.non_trainable_variables if v.dtype == dtype]
    frozen = [v for v in low if "moving" not in v.path]
    assert len(frozen) > 15
    stored = [v._value for v in frozen]
    before = [np.array(v.value) for v in frozen]
    optimizer = adam_or_sgd(policy)
    foretold = mp.estimate_memory(model, optimizer, policy)
    float32 = ready(widened(model, lora=True), policy)
    amp = ready(model, policy, optimizer)
    start = amp.weights()
    train(amp)
    train(float32)
    check_same(amp, float32)
    moved = [path for path, value in amp.weights().items() if (value != start[path]).any()]
    assert {"base.lora_kernel_a", "base.lora_kernel_b", "head.bias"} <= set(moved)
    found = amp.array_bytes()
    statistics = sum(4 * int(np.prod(v.shape)) for v in model.get_layer("bn").variables[2:])
    numbers = sum(
        v._value.dtype.size * int(np.prod(v.shape))
        for v in model.non_trainable_variables
        if v.dtype.startswith("uint")
    )
    assert found["parameters"] - statistics - numbers == foretold.parameters
    assert found["masters"] == foretold.masters
    for variable, value, storage in zip(frozen, before, stored, strict=True):
        assert variable._value is storage
        assert (np.array(variable.value) == value).all()
    amp.release()
    for variable, value, storage in zip(frozen, before, stored, strict=True):
        assert variable._value is storage
        assert variable.dtype == dtype
        assert (np.array(variable.value) == value).all()
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    assert model.get_layer("head").dtype_policy.name == f"mixed_{dtype}"
    assert model.get_layer("conv").dtype_policy.name == dtype
    assert np.isfinite(model.predict(TOKENS, verbose=0).astype("f4")).all()
    train(ready(model, policy))


def test_it_is_said_once_and_only_of_what_is_trained():
    with pytest.warns(MpcoreWarning, match=r"emb\.embeddings in bfloat16 and \d+ more.*release"):
        amp = mp.prepare(net("bfloat16"), keras.optimizers.Adam(), "mixed_bfloat16")
    assert set(amp.widened.values()) == {"bfloat16"}
    model = net("bfloat16", lora=True)
    model.get_layer("head").bias.trainable = False
    amp = mp.prepare(model, keras.optimizers.Adam(), "mixed_bfloat16")  # warnings are errors here
    assert amp.widened == {}
    amp = mp.prepare(other := net("bfloat16"), None, "mixed_bfloat16")
    assert amp.widened == {}
    assert {v.dtype for v in other.trainable_variables} == {"bfloat16"}
    float32 = mp.prepare(widened(net("bfloat16"), lora=False), None, "mixed_bfloat16")
    np.testing.assert_array_equal(float32.model(TOKENS), amp.model(TOKENS))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16, master=split"])
def test_state_dicts_resume_it_bit_for_bit(policy):
    amp = ready(net("bfloat16", lora=True), policy)
    train(amp)
    saved, weights = amp.state_dict(), amp.model.get_weights()
    slots = [np.array(v.value) for v in amp.optimizer.inner_optimizer.variables]
    train(amp)
    other = ready(net("bfloat16", lora=True), policy)
    other.model.set_weights(weights)
    other.load_state_dict(saved)
    for v, value in zip(other.optimizer.inner_optimizer.variables, slots, strict=True):
        v.assign(value)
    train(other)
    check_same(amp, other)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16, master=split"])
def test_a_file_of_the_prepared_model_has_every_bit(policy, tmp_path):
    keras.utils.set_random_seed(0)
    frozen = {"trainable": False, "bias_initializer": "normal"}
    first = layers.Dense(8, dtype="bfloat16", name="first", **frozen)
    second = layers.Dense(8, name="second", **frozen)
    last = [layers.Dense(3, dtype="bfloat16", name="last"), layers.LayerNormalization(name="ln")]
    model = keras.Sequential([layers.Input((5,)), first, second, *last])
    amp = ready(model, policy)
    model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
    train(amp)
    model.save(path := tmp_path / "model.keras")
    loaded = keras.models.load_model(path)
    again = ready(loaded, policy, loaded.optimizer)
    check_same(amp, again)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16"])
def test_what_is_unfrozen_later_does_not_train_in_16_bits(policy):
    amp = ready(net("bfloat16", lora=True), policy)
    train(amp)
    amp.model.get_layer("conv").trainable = True
    before = amp.weights()
    with pytest.raises(BackendError, match=r"conv\.kernel was frozen in bfloat16.*release"):
        amp.step(loss_of(amp.model), TOKENS, Y)
    amp.model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
    with pytest.raises(BackendError, match=r"conv\.kernel was frozen in bfloat16.*release"):
        amp.model.fit(TOKENS, Y, verbose=0)
    assert all((value == before[path]).all() for path, value in amp.weights().items())
    amp.model.get_layer("conv").trainable = False
    train(amp)


def test_an_optimizer_that_ran_in_16_bits_goes_on_in_float32():
    model, optimizer = net("bfloat16"), keras.optimizers.Adam(1e-2)
    model.compile(optimizer=optimizer, loss=CROSS_ENTROPY)
    model.train_on_batch(TOKENS, Y)
    slots = [np.array(tf.cast(v.value, tf.float32)) for v in optimizer.variables[2:]]
    assert {v.dtype for v in optimizer.variables[2:]} == {"bfloat16"}
    amp = ready(model, "mixed_bfloat16", optimizer)
    for slot, value in zip(optimizer.variables[2:], slots, strict=True):
        assert slot.dtype == "float32"
        np.testing.assert_array_equal(np.array(slot.value), value)
    train(amp)


def test_what_would_be_rounded_is_refused_before_anything_changes():
    model = net("float16", lora=True)
    with pytest.raises(BackendError, match=r"emb\.embeddings is float16.*by='layer'"):
        mp.prepare(model, keras.optimizers.Adam(), "model_bfloat16")
    assert model.get_layer("head").bias.dtype == "float16"
    with pytest.raises(BackendError, match=r"must hold float32.*float64"):
        mp.prepare(net("float64"), keras.optimizers.Adam(), "mixed_bfloat16")
