"""JAX as a side of a comparison."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax is not installed: make jax")
from flax import nnx
from kit_jax import kit

import mpcore as mp
from mpcore.capabilities.proofs import proved
from mpcore.conformance.harness import X, Y, oracle_weights
from mpcore_jax.driver import JaxDriver


class Picture(nnx.Module):
    def __init__(self):
        self.conv = nnx.Conv(3, 4, (2, 2), padding="VALID", rngs=nnx.Rngs(0))
        self.head = nnx.Linear(4, 5, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.head(self.conv(x).mean((1, 2)))


def test_pictures_and_kernels_lie_as_torch_has_them():
    driver = JaxDriver()
    model = driver.build(Picture, X, "channels_first")
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype("f4")
    amp = mp.prepare(model, None, "float32")
    weight, bias = (driver.weights(model, amp)[0].arrays[n] for n in ("weight", "bias"))
    assert weight.shape == (4, 3, 2, 2)
    patches = np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3))
    wanted = np.einsum("ncijkl,ockl->noij", patches, weight).mean((2, 3)) + bias
    head = driver.weights(model, amp)[1].arrays
    wanted = wanted @ head["weight"].T + head["bias"]
    found = driver.predict(model, amp, x, "channels_first")
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "spec", [mp.OptimizerSpec("sgd", 0.1, momentum=0.9), mp.OptimizerSpec("adam", 0.01)]
)
def test_state_taken_out_and_put_in_goes_on_as_before(spec):
    driver, runs = JaxDriver(), []
    for _ in range(2):
        model = kit.model()
        driver.load_weights(model, oracle_weights())
        runs.append((model, mp.prepare(model, driver.optimizer(spec, model), "model_bfloat16")))
    (model, amp), (other, second) = runs
    loss = driver.loss("cross_entropy", model)
    batch = driver.batch(X, Y, "")
    for _ in range(2):
        amp.step(loss, *batch)
    driver.load_weights(other, driver.weights(model, amp), second)
    driver.load_slots(other, second, driver.slots(model, amp))
    for each, taken in ((model, amp), (other, second)):
        driver.set_rate(taken, 0.02)
        taken.step(driver.loss("cross_entropy", each), *batch)
    for one, two in zip(driver.weights(model, amp), driver.weights(other, second), strict=True):
        for name in one.arrays:
            np.testing.assert_array_equal(one.arrays[name], two.arrays[name], err_msg=name)
    assert driver.slots(other, second).steps == 3


def test_the_known_difference_shows_here():
    (shown,) = proved(mp.load_backend("jax"))
    assert shown.name == "biased_moving_variance_in_jax"
    assert 0.1 < shown.size < 0.2
