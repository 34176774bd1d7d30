"""``prepare`` once more, without an optimizer, and what a released model says; every framework."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from harness import X, Y, assert_same

import mpcore as mp
from mpcore.errors import BackendError


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16"])
def test_the_same_arguments_give_the_same_object(kit, policy):
    model = kit.model()
    optimizer = kit.sgd(model, 0.1, 0.9)
    amp = mp.prepare(model, optimizer, policy)
    assert mp.prepare(model, optimizer, mp.Policy.of(policy)) is amp
    amp.step(kit.loss_fn(model), *kit.batch(X, Y, 1.0))
    assert mp.prepare(model, optimizer, policy) is amp


@pytest.mark.parametrize("other", ["optimizer", "policy", "on_bad_micro_batch", "strict"])
def test_other_arguments_are_refused_and_release_is_named(kit, other):
    model = kit.model()
    optimizer = kit.sgd(model, 0.1, 0.9)
    amp = mp.prepare(model, optimizer, "mixed_bfloat16")
    given = {"optimizer": optimizer, "policy": "mixed_bfloat16"}
    given |= {
        "optimizer": {"optimizer": kit.sgd(model, 0.1, 0.9)},
        "policy": {"policy": "mixed_float16"},
        "on_bad_micro_batch": {"on_bad_micro_batch": "drop"},
        "strict": {"strict": False},
    }[other]
    rule = rf"must not be prepared twice with another `{other}`: call `release\(\)`"
    with pytest.raises(BackendError, match=rule):
        mp.prepare(model, **given)
    amp.release()
    if kit.name != "numpy":  # its optimizers know their arrays by name
        again = mp.prepare(model, **given)
        assert again is not amp
        assert again.step(kit.loss_fn(model), *kit.batch(X, Y, 1.0)).stepped


def test_who_lost_the_object_finds_it_again(kit):
    if kit.name in ("numpy", "tensorflow"):
        pytest.skip("its model does not hold the object")
    model = kit.model()
    optimizer = kit.sgd(model, 0.1, 0.9)
    mp.prepare(model, optimizer, "mixed_bfloat16")
    gc.collect()
    assert mp.prepare(model, optimizer, "mixed_bfloat16").step(
        kit.loss_fn(model), *kit.batch(X, Y, 1.0)
    )


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16, master=split"])
def test_a_model_for_inference_computes_as_one_for_training(kit, policy):
    trained, model = kit.model(), kit.model()
    before = mp.prepare(trained, kit.sgd(trained, 0.1, 0.9), policy)
    amp = mp.prepare(model, None, policy)
    assert amp.inference
    assert amp.policy.master == "none"
    if policy == "mixed_bfloat16":
        assert_same(amp.weights(), before.weights())
    if kit.name != "numpy":  # it has no forward pass of its own
        batch = kit.batch(X, Y, 1.0)
        one, two = (kit.loss_fn(m)(*batch) for m in (trained, model))
        assert bool(one == two)
    assert amp.array_bytes()["masters"] == 0
    with pytest.raises(BackendError, match=r"`step` needs an optimizer.*release\(\)"):
        amp.step(kit.loss_fn(model), *kit.batch(X, Y, 1.0))
    if hasattr(type(amp), "optimizer"):
        with pytest.raises(BackendError, match="for inference"):
            _ = amp.optimizer
    assert mp.prepare(model, None, policy) is amp
    weights = amp.weights()
    amp.load_weights({k: np.zeros_like(v) for k, v in weights.items()})
    amp.load_weights(weights)
    assert_same(amp.weights(), weights)
    state = amp.state_dict()
    amp.load_state_dict(state)
    amp.release()


@pytest.mark.backend("numpy")  # the others do
def test_an_example_is_refused_where_nothing_foretells_it(kit):
    model = kit.model()
    with pytest.raises(BackendError, match="leave out `example`"):
        mp.prepare(model, kit.sgd(model, 0.1, 0.9), "mixed_bfloat16", example=X)
