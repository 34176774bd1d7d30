"""``amp.state_dict()`` beside the host's own checkpoint of model and optimizer."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest

import mpcore as mp
from mpcore.errors import BackendError, CheckpointError

pytestmark = pytest.mark.backend("torch")
torch = pytest.importorskip("torch", reason="torch is not installed")
sys.path.insert(0, str(Path(__file__).parent))

import torch_resume as runs  # noqa: E402


def checkpoint(amp):
    return {
        "model": amp.model.state_dict(),
        "optimizer": amp.optimizer.state_dict(),
        "amp": amp.state_dict(),
    }


def test_a_run_resumed_in_another_process_in_any_order_is_the_uninterrupted_one(tmp_path):
    """Every scheme of master weights, by op, layer and model; torch.load(weights_only=True)."""
    expected = {}
    for name in runs.POLICIES:
        amp = runs.make(name)
        runs.train(amp, range(runs.CUT))
        torch.save(checkpoint(amp), tmp_path / f"{name}.pt")
        runs.train(amp, range(runs.CUT, runs.STEPS))
        expected[name] = runs.digest(amp)
    child = subprocess.run(
        [sys.executable, runs.__file__, tmp_path], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    lines = [line.split() for line in child.stdout.splitlines()]
    assert len(lines) == len(runs.POLICIES) * len(runs.ORDERS)
    assert [line for line in lines if line[2] != expected[line[0]]] == []


def test_without_it_the_float32_values_are_lost():
    """What the dict is for: else the tests above could not fail."""
    amp, other = runs.make("copy"), runs.make("copy", seed=9)
    runs.train(amp, range(5))
    saved = copy.deepcopy(checkpoint(amp))
    saved["model"] = dict(saved["model"])  # as what knows tensors alone, safetensors say, keeps it
    for part, home in (("model", other.model), ("optimizer", other.optimizer)):
        home.load_state_dict(saved[part])
    assert runs.digest(other) != runs.digest(amp)
    other.load_state_dict(saved["amp"])
    assert runs.digest(other) == runs.digest(amp)


@pytest.mark.parametrize("name", ["layerb", "op", "none", "chance"])
def test_what_the_model_stores_whole_is_not_stored_twice(name):
    assert runs.make(name).state_dict()["masters"] == {}


def test_the_keys_are_those_that_the_page_names():
    amp = runs.make("split")
    state = amp.state_dict()
    assert list(state) == ["format", "version", "backend", "policy", "run", "masters", "sums"]
    assert state["policy"] == str(amp.policy)
    assert sorted(state["masters"]) == sorted(
        name for name in dict(amp.model.named_parameters()) if not name.startswith("bn")
    )


DAMAGE = {
    "format": lambda s: s.update(format="other"),
    "version": lambda s: s.update(version=2),
    "no version": lambda s: s.update(version=None),
    "key": lambda s: s.pop("sums"),
    "more": lambda s: s.update(more=1),
    "masters": lambda s: s.update(masters=[]),
    "scale": lambda s: s["run"]["state"].update(scale=3.0),
    "run": lambda s: s.update(run=None),
    "bit": lambda s: s["masters"]["fc1.weight"].view(torch.int32)[3, 3].bitwise_xor_(1),
    "name": lambda s: s["masters"].update(other=s["masters"].pop("fc1.weight")),
    "dtype": lambda s: s["masters"].update({"fc1.weight": s["masters"]["fc1.weight"].half()}),
    "no array": lambda s: s["masters"].update({"fc1.weight": 3}),
    "backend": lambda s: s.update(backend="mindspore"),
    "sums": lambda s: s["sums"].pop("fc1.weight"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told_and_nothing_has_changed(name):
    amp, other = runs.make("copy"), runs.make("copy", seed=9)
    runs.train(amp, range(5))
    state, before = copy.deepcopy(amp.state_dict()), runs.digest(other)
    DAMAGE[name](state)
    with pytest.raises(CheckpointError):
        other.load_state_dict(state)
    assert runs.digest(other) == before
    runs.train(other, range(2))  # nothing waits


@pytest.mark.parametrize("state", [None, 3, [], {}, "x", {"scale": 1.0}])
def test_what_is_no_such_dict_is_told(state):
    with pytest.raises(CheckpointError, match=r"amp\.state_dict\(\) returned"):
        runs.make("copy").load_state_dict(state)


def test_another_policy_is_told_with_the_way_out():
    amp, other = runs.make("copy"), runs.make("split", seed=9)
    runs.train(amp, range(5))
    state, before = amp.state_dict(), runs.digest(other)
    with pytest.raises(CheckpointError, match=r"policy.master is 'copy' .*any_policy=True"):
        other.load_state_dict(state)
    assert runs.digest(other) == before
    other.model.load_state_dict(amp.model.state_dict())
    assert other.load_state_dict(state, any_policy=True)
    for name, values in amp.weights().items():
        assert (other.weights()[name] == values).all()
    by_layer = runs.make("layerb", seed=9)
    by_layer.model.load_state_dict(amp.model.state_dict())
    by_layer.load_state_dict(state, any_policy=True)
    assert (by_layer.weights()["fc1.weight"] == amp.weights()["fc1.weight"]).all()


def test_another_model_is_told():
    amp = runs.make("copy")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    other = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), amp.policy)
    with pytest.raises(CheckpointError, match="another model"):
        other.load_state_dict(amp.state_dict())
    with pytest.raises(CheckpointError, match="another model"):
        amp.load_state_dict(other.state_dict())
    shape = copy.deepcopy(amp.state_dict())
    shape["masters"]["fc1.weight"] = shape["masters"]["fc1.weight"].reshape(8, 40)
    with pytest.raises(CheckpointError, match=r"model's shape \(40, 8\), got \(8, 40\)"):
        amp.load_state_dict(shape)


def test_one_half_of_a_pair_does_not_train():
    """The values of one moment and 16-bit parameters of another are no checkpoint."""
    amp, other = runs.make("copy"), runs.make("copy", seed=9)
    runs.train(amp, range(5))
    saved = copy.deepcopy(checkpoint(amp))
    runs.train(amp, range(5, 8))
    other.load_state_dict(saved["amp"])
    with pytest.raises(CheckpointError, match="of the same moment too"):
        runs.train(other, range(1))
    other.model.load_state_dict(amp.model.state_dict())  # of a later moment
    with pytest.raises(CheckpointError, match="of the same moment too"):
        runs.train(other, range(1))
    other.load_state_dict(saved["amp"])
    other.model.load_state_dict(saved["model"])
    runs.train(other, range(1))
    other.load_state_dict(saved["amp"])
    other.load_weights(amp.weights())  # the other way out
    runs.train(other, range(1))


def test_memory_that_training_went_on_in_is_told():
    amp = runs.make("copy")
    state = amp.state_dict()
    runs.train(amp, range(1))
    with pytest.raises(CheckpointError, match=r"copy\.deepcopy what stays in memory"):
        amp.load_state_dict(state)


def test_a_waiting_step_refuses_both():
    amp = runs.make("copy")
    state = amp.state_dict()
    with amp.autocast():
        loss = runs.loss_fn_of(amp)(torch.randn(4, 8), torch.zeros(4, dtype=torch.long))
    amp.backward(loss)
    with pytest.raises(BackendError, match="while the gradients of `backward` wait"):
        amp.state_dict()
    with pytest.raises(BackendError, match="while the gradients of `backward` wait"):
        amp.load_state_dict(state)


@pytest.mark.parametrize("name", ["split", "nearest", "truncate", "kahan", "copy", "away"])
def test_hard_values_go_through_bit_for_bit(name):
    """Subnormals, ties, the largest numbers, both zeros, infinities."""
    amp, other = runs.make(name), runs.make(name, seed=9)
    generator = torch.Generator().manual_seed(1)
    for param in amp.masters:
        bits = torch.randint(-(2**31), 2**31 - 1, param.shape, generator=generator)
        values = bits.to(torch.int32).view(torch.float32)
        ties = (bits.to(torch.int32) & -65536 | 32768).view(torch.float32)
        values = torch.where(torch.rand(param.shape, generator=generator) < 0.3, ties, values)
        amp.put_float32(param, torch.where(values.isnan(), torch.inf, values))
    for order in (("amp", "model"), ("model", "amp")):
        saved = copy.deepcopy(checkpoint(amp))
        for part in order:
            {"amp": other, "model": other.model}[part].load_state_dict(saved[part])
        mine, its = amp._tx.master_weights.states, other._tx.master_weights.states
        for one, two in zip(mine.values(), its.values(), strict=True):
            parts = zip([one.low, *one.parts()], [two.low, *two.parts()], strict=True)
            assert all(a.detach().equal(b.detach()) for a, b in parts)


@pytest.mark.parametrize(
    "name", ["copy16", "copy", "away", "split", "nearest", "truncate", "kahan"]
)
def test_a_state_dict_of_the_model_carries_its_float32_values(name, tmp_path):
    """Through torch.save and copies, under the model or one around it; tensors stay in 16 bits."""
    amp, other = runs.make(name), runs.make(name, seed=9)
    runs.train(amp, range(5))
    around, its = (torch.nn.ModuleDict({"net": each.model}) for each in (amp, other))
    for model, home in ((amp.model, other.model), (around, its)):
        state = model.state_dict()
        assert {v.dtype for v in state.values()} == {v.dtype for v in home.state_dict().values()}
        torch.save(state, tmp_path / "model.pt")
        kept = copy.deepcopy(state)
        for saved in (torch.load(tmp_path / "model.pt", weights_only=True), kept):
            runs.train(other, range(1))
            home.load_state_dict(saved)
            for key, value in amp.weights().items():
                assert (other.weights()[key] == value).all()
    runs.train(amp, range(5, 7))
    amp.model.load_state_dict(kept := copy.deepcopy(other.model.state_dict()))
    for key, value in other.weights().items():
        assert (amp.weights()[key] == value).all()
    plain = runs.Net()
    plain.load_state_dict(kept)  # a model that is not prepared reads the tensors
    assert plain.fc1.weight.equal(kept["fc1.weight"].float())


def test_carried_values_that_are_not_behind_the_tensors_are_left():
    amp = runs.make("copy")
    runs.train(amp, range(3))
    state = copy.deepcopy(amp.model.state_dict())
    state["fc1.weight"] = state["fc1.weight"] * 2
    amp.model.load_state_dict(state)
    assert (amp.weights()["fc1.weight"] == state["fc1.weight"].float().numpy()).all()


def test_copies_and_pickles_of_the_model_carry_nothing_of_it():
    amp = runs.make("copy")
    other = copy.deepcopy(amp.model)
    assert not any("mpcore" in key for f in other.state_dict()._metadata.values() for key in f)
    amp.release()
    assert not any("mpcore" in key for f in amp.model.state_dict()._metadata.values() for key in f)
