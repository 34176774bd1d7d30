"""``amp.state_dict()`` beside the framework's own checkpoint, in every framework."""

from __future__ import annotations

import copy
import itertools
from functools import partial

import numpy as np
import pytest
from harness import Trained, assert_same

from mpcore.errors import CheckpointError
from mpcore.policy.policy import Policy

POLICIES = [
    "mixed_float16",
    "model_bfloat16",
    "model_bfloat16, master=split",
    "model_bfloat16, master=kahan",
    "model_bfloat16, master=stochastic:3",
]
ORDERS = list(itertools.permutations(("model", "optimizer", "amp")))
BOOSTS = (1.0, np.inf, 1.0, 1.0)


def native(run):
    """Return what the host's checkpoint has of model and optimizer, and what loads it."""
    amp = run.amp
    if run.kit.name == "torch":
        homes = {"model": amp.model, "optimizer": amp.optimizer}
        saved = {name: copy.deepcopy(home.state_dict()) for name, home in homes.items()}
        return saved, {name: home.load_state_dict for name, home in homes.items()}
    if run.kit.name == "tensorflow":
        store = {}
        amp.optimizer.save_own_variables(store)
        saved = {"model": amp.model.get_weights(), "optimizer": store}
        loads = {"model": amp.model.set_weights, "optimizer": amp.optimizer.load_own_variables}
        return saved, loads
    if run.kit.name == "mindspore":
        import mindspore as ms

        homes = {"model": amp.model, "optimizer": run.optimizer}
        saved = {
            name: {p.name: ms.Parameter(p.asnumpy().copy()) for p in home.get_parameters()}
            for name, home in homes.items()
        }
        return saved, {name: partial(ms.load_param_into_net, home) for name, home in homes.items()}
    model, optimizer = amp._trained_model, run.optimizer
    arrays = {
        "model": model.params | model.buffers,
        "optimizer": {f"{s}.{n}": v for s, vs in optimizer.slots.items() for n, v in vs.items()},
    }

    def load(own, values):
        for name, value in own.items():
            value[...] = values[name]
        optimizer.steps = values.get("steps", optimizer.steps)

    saved = copy.deepcopy(arrays)
    saved["optimizer"]["steps"] = optimizer.steps
    return saved, {name: partial(load, own) for name, own in arrays.items()}


def everything(run):
    return run.snapshot() | {f"weights:{k}": v for k, v in run.amp.weights().items()}


def resume(kit, policy, run, saved, order):
    """Load ``saved`` in ``order`` and check that training goes on as in ``run``."""
    # MindSpore's own load gives new memory, which an optimizer that has run does not see.
    other = Trained(kit, policy)
    if kit.name != "mindspore":
        other.step()
    loads = native(other)[1] | {"amp": other.amp.load_state_dict}
    for part in order:
        loads[part](copy.deepcopy(saved[part]))  # torch keeps the tensors that it loads
    for boost in BOOSTS:
        other.step(boost)
    assert_same(everything(other), everything(run))
    assert other.amp.state == run.amp.state


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_resumed_from_the_three_goes_on_bit_for_bit(kit, policy):
    policy = Policy.parse(policy)
    run = Trained(kit, policy)
    for boost in BOOSTS:
        run.step(boost)
    saved = native(run)[0] | {"amp": copy.deepcopy(run.amp.state_dict())}
    for boost in BOOSTS:
        run.step(boost)
    for order in ORDERS[:: 1 if kit.name in ("numpy", "torch") else 5]:
        resume(kit, policy, run, saved, order)


def test_damage_and_other_policies_change_nothing(kit):
    run, other = Trained(kit, "model_bfloat16"), Trained(kit, "mixed_bfloat16")
    run.step()
    state, before = run.amp.state_dict(), everything(other)
    assert all(value.dtype.__str__().endswith("float32") for value in state["masters"].values())
    for bad in (state | {"version": 2}, state | {"sums": {}}, state, None):
        with pytest.raises(CheckpointError):
            other.amp.load_state_dict(bad)
    assert_same(everything(other), before)
