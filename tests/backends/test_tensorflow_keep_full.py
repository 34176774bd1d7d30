"""``on_overflow="keep full"`` in Keras: a planted layer in ``step`` and ``fit``, and resuming."""

from __future__ import annotations

import numpy as np
import pytest

import mpcore as mp

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.backend("tensorflow")

RULE = mp.LossScale(init_scale=1024.0, growth_interval=1000)
POLICY = mp.Policy.named("mixed_float16").with_loss_scale(RULE)
KEPT = "keep full"


def net():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,))
    h = keras.layers.Dense(8, activation="relu", name="first")(inputs)
    large = keras.initializers.Constant(200.0)
    h = keras.layers.Dense(8, kernel_initializer=large, name="big")(h)
    h = keras.layers.Rescaling(1e-3, name="small")(h)
    return keras.Model(inputs, keras.layers.Dense(4, name="last")(h))


def batch(size, number=0):
    rng = np.random.default_rng(number)
    return (rng.random((16, 8)) * size).astype(np.float32), rng.integers(0, 4, 16)


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def ready(**options):
    model = net()
    optimizer = keras.optimizers.SGD(1e-3)
    return model, mp.prepare(model, optimizer, POLICY, on_overflow=KEPT, **options)


def loss_of(model):
    return lambda x, y: LOSS(y, model(x, training=True))


def twice(amp, *step):
    return [amp.step(*step) for _ in range(2)]


def told():
    return pytest.warns(mp.MpcoreWarning, match="`big` overflowed.*float32 from now on")


def test_the_second_overflow_of_a_layer_keeps_it_full_in_step():
    model, amp = ready()
    loss_fn = loss_of(model)
    assert amp.step(loss_fn, *batch(1.0)).stepped
    assert not amp.step(loss_fn, *batch(1000.0)).stepped
    assert amp.kept_full == ()
    with told():
        amp.step(loss_fn, *batch(1000.0))
    assert amp.kept_full == ("full path=big",)
    assert amp.plan["big"].compute == "float32"
    assert amp.step(loss_fn, *batch(1000.0)).stepped
    other = net()
    other.set_weights(model.get_weights())
    mp.prepare(other, keras.optimizers.SGD(1e-3), amp.policy)
    x, _ = batch(1000.0, 5)
    assert np.array_equal(model(x), other(x))
    amp.release()
    plain = net()
    plain.set_weights(model.get_weights())
    assert np.array_equal(model(x), plain(x))


@pytest.mark.parametrize("how", [{"jit_compile": False}, {"run_eagerly": True}, {}])
def test_fit_is_traced_anew_and_goes_on_in_the_middle_of_an_epoch(how):
    model, amp = ready()
    model.compile(amp.optimizer, LOSS, metrics=["accuracy"], **how)
    small, large = batch(1.0), batch(1000.0)
    x = np.concatenate([small[0], large[0], large[0], large[0], small[0]])
    y = np.concatenate([small[1], large[1], large[1], large[1], small[1]])
    with told():
        model.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
    assert amp.kept_full == ("full path=big",)
    assert amp.state.skipped_steps == 2
    assert int(amp.optimizer.inner_optimizer.iterations) == 3
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    assert amp.state.skipped_steps == 2
    assert np.isfinite(history["loss"]).all()


def test_fit_with_the_insurance_trains_as_without_it():
    def trained(option):
        model = net()
        amp = mp.prepare(model, keras.optimizers.Adam(1e-3), POLICY, on_overflow=option)
        model.compile(amp.optimizer, LOSS, metrics=["accuracy"], jit_compile=False)
        x, y = batch(1.0)
        x[2] = 1e5  # too large for float16 as it comes in, once
        told = model.fit(x, y, batch_size=5, epochs=1, shuffle=False, verbose=0).history
        return model.get_weights(), told, amp.state

    (one, shown, state), (other, same, again) = trained("skip"), trained(KEPT)
    assert state == again
    assert state.skipped_steps == 1
    assert all(map(np.array_equal, one, other))
    assert str(shown) == str(same)


def test_fit_of_several_steps_at_once_is_refused():
    model, amp = ready()
    model.compile(amp.optimizer, LOSS, steps_per_execution=2)
    with pytest.raises(mp.BackendError, match=r"steps_per_execution.*keep full"):
        model.fit(*batch(1.0), verbose=0)


def test_a_run_that_resumes_goes_on_bit_for_bit(tmp_path):
    model, amp = ready()
    loss_fn = loss_of(model)
    with told():
        twice(amp, loss_fn, *batch(1000.0))
    amp.step(loss_fn, *batch(1000.0, 1))
    amp.save(tmp_path / "run.amp", weights=True)
    other, again = ready()
    assert again.load(tmp_path / "run.amp") == []
    assert again.kept_full == ("full path=big",)
    one = [amp.step(loss_fn, *batch(1000.0, n)).loss for n in range(2)]
    own = loss_of(other)
    assert [again.step(own, *batch(1000.0, n)).loss for n in range(2)] == one


def test_parameters_of_16_bits_are_refused():
    with pytest.raises(mp.BackendError, match=r"by='model'.*stored in 16 bits"):
        mp.prepare(net(), keras.optimizers.SGD(), "model_float16", on_overflow=KEPT)
