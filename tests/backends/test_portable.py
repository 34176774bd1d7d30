"""Weights from framework to framework and scheme to scheme, by way of the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from harness import Trained, load_kit

import mpcore as mp
from mpcore.checkpoint.layer_weights import flatten

SPLIT = "model_bfloat16, master=split"
SCHEMES = ("copy", "split", "kahan", "stochastic")
# relative, of what comes back: kahan keeps 17 bits, the bfloat16 parameter alone 8
KEPT = {"kahan": 2.0**-17, "stochastic": 2.0**-8}


def values(amp: mp.Amp) -> dict[str, np.ndarray]:
    """Return the truth by layer and array; the layers' paths differ between frameworks."""
    found = flatten(amp._read_layers())
    return {"|".join(np.array(key.split("|"))[[0, 1, 3]]): found[key] for key in sorted(found)}


def assert_near(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], kept: float) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=kept, atol=0, err_msg=name)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_go_there_and_back(kit, tmp_path: Path, scheme: str) -> None:
    reference = Trained(load_kit("numpy"), mp.Policy.parse(SPLIT))
    for _ in range(3):
        reference.step()
    reference.amp.save(tmp_path / "there.amp", weights=True)
    truth = values(reference.amp)

    there = Trained(kit, mp.Policy.parse(f"model_bfloat16, master={scheme}"))
    there.amp.load(tmp_path / "there.amp", any_policy=True)
    assert_near(values(there.amp), truth, KEPT.get(scheme, 0))
    assert there.step().stepped

    there.amp.save(tmp_path / "back.amp", weights=True)
    moved = values(there.amp)
    reference.amp.load(tmp_path / "back.amp", any_policy=True)
    assert_near(values(reference.amp), moved, 0)


def test_float32_values_by_path_go_in_and_come_out(kit) -> None:
    run = Trained(kit, mp.Policy.parse(SPLIT))
    run.step()
    rng = np.random.default_rng(0)
    given = {
        name: np.abs(rng.normal(size=value.shape)).astype(np.float32)  # variances among them
        for name, value in run.amp.weights().items()
    }
    run.amp.load_weights(given)
    for name, value in run.amp.weights().items():
        np.testing.assert_array_equal(value, given[name], err_msg=name)
    before = run.snapshot()
    wrong = {**given, next(iter(given)): np.zeros(1, np.float32)}
    with pytest.raises(mp.CheckpointError, match=r"`weights` must have the model's shapes"):
        run.amp.load_weights(wrong)
    for name, value in run.snapshot().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_weights_of_another_architecture_are_refused(kit, tmp_path: Path) -> None:
    other = mp.prepare(*_smaller(), SPLIT)
    other.save(tmp_path / "other.amp", weights=True)
    run = Trained(kit, mp.Policy.parse(SPLIT))
    before = run.snapshot()
    with pytest.raises(mp.CheckpointError, match="must be those of the same architecture"):
        run.amp.load(tmp_path / "other.amp")
    for name, value in run.snapshot().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def _smaller():
    from mpcore_numpy import SGD, Model

    model = Model({"fc1": "linear"}, {"fc1.weight": np.ones((4, 8), "f4")})
    return model, SGD(model.params, 0.1)
