"""Every scheme of master weights, in the reference: what is exact, what is kept, what stalls."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from harness import Trained, X, Y, load_kit

import mpcore as mp
from mpcore.numerics.master_weights import round_bits, widen

pytestmark = pytest.mark.backend("numpy")

KIT = load_kit("numpy")
BASE = "model_bfloat16, master={}"
SCHEMES = ("copy", "copy:away", "split", "split:truncate", "split:nearest", "kahan", "stochastic:3")


def policy(master: str, state: str = "float32") -> mp.Policy:
    return mp.Policy.parse(f"param=bfloat16, compute=bfloat16, by=model, master={master}, "
                           f"optimizer_state={state}")  # fmt: skip


def trained(master: str, optimizer: str = "adam", state: str = "float32", **options) -> Trained:
    with warnings.catch_warnings():
        return Trained(KIT, policy(master, state), optimizer=optimizer, options=options)


def stored(run: Trained) -> dict[str, np.ndarray]:
    """Return every stored part, optimizer slot and buffer."""
    parts = {
        f"{name}:{i}": part.copy()
        for name, parts in run.amp._tx.masters.parts.items()
        for i, part in enumerate(parts)
    }
    return parts | run.snapshot()


def assert_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("rounding", ["nearest", "away", "truncate"])
def test_split_is_copy_bit_for_bit(rounding: str, optimizer: str) -> None:
    runs = [trained(f"{name}:{rounding}", optimizer) for name in ("copy", "split")]
    for step in range(200):
        boost = np.inf if step % 50 == 7 else 1.0
        one, other = (run.step(boost) for run in runs)
        assert one.to_dict() == other.to_dict()
        assert_equal(runs[0].amp.weights(), runs[1].amp.weights())
        assert_equal(runs[0].snapshot(), runs[1].snapshot())


@pytest.mark.parametrize("master", [*SCHEMES, "none"])
def test_a_skipped_step_leaves_every_part(master: str) -> None:
    run = trained(master)
    run.step()
    before, steps = stored(run), run.amp.optimizer_steps
    assert not run.step(np.inf).stepped
    assert_equal(stored(run), before)
    assert run.amp.optimizer_steps == steps == 1
    assert run.step().stepped
    assert (stored(run)["fc1.weight"] != before["fc1.weight"]).any()


@pytest.mark.parametrize("master", SCHEMES)
def test_the_model_reads_16_bits_and_release_gives_the_truth(master: str) -> None:
    run = trained(master)
    for _ in range(3):
        run.step()
    truth, params = run.amp.weights(), run.model.params
    assert (params["fc1.weight"] == widen(round_bits(params["fc1.weight"]))).all()
    assert (params["bn.weight"] == truth["bn.weight"]).all()  # a norm is stored in float32
    if not master.startswith("stochastic"):
        assert (params["fc1.weight"] != truth["fc1.weight"]).any()
    run.amp.release()
    run.amp.release()
    assert_equal({n: v for n, v in truth.items() if n in params}, params)


@pytest.mark.parametrize("master", SCHEMES)
def test_float32_values_go_in_and_come_out(master: str) -> None:
    run = trained(master)
    rng = np.random.default_rng(5)
    given = {n: rng.normal(size=v.shape).astype("f4") for n, v in run.amp.weights().items()}
    run.amp.load_weights(given)
    found = run.amp.weights()
    tolerance = {"kahan": 2.0**-17, "stochastic": 2.0**-8}.get(master.partition(":")[0], 0)
    for name, value in given.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=0)
    assert run.step().stepped


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("fc2.bias"), r"`weights` lacks 'fc2\.bias'; the model has 8 arrays"),
        (lambda w: w.update(head=w["fc2.bias"]), "must not hold 'head'"),
        (lambda w: w.update({"fc2.bias": w["fc2.bias"][1:]}), r"'fc2\.bias' is \(3,\), not \(4,\)"),
        (lambda w: w.update({"fc2.bias": w["fc2.bias"].astype("f2")}), r"'fc2\.bias' is float16"),
    ],
)
def test_wrong_weights_are_refused_and_nothing_moves(change, message: str) -> None:
    run = trained("split")
    weights = {name: value + 1 for name, value in run.amp.weights().items()}
    change(weights)
    before = stored(run)
    with pytest.raises(mp.CheckpointError, match=message):
        run.amp.load_weights(weights)
    assert_equal(stored(run), before)


def test_optimizer_state_of_16_bits_is_rounded_after_each_step() -> None:
    run, full = trained("split", state="bfloat16"), trained("split")
    for _ in range(5):
        run.step(), full.step()
    slot, other = (r.optimizer.slots["exp_avg_sq"]["fc1.weight"] for r in (run, full))
    np.testing.assert_array_equal(slot, widen(round_bits(slot)))
    assert (other != widen(round_bits(other))).any()
    assert run.amp.array_bytes()["optimizer"] < full.amp.array_bytes()["optimizer"]


def test_stochastic_runs_are_reproducible_and_differ_by_seed() -> None:
    runs = [trained(f"stochastic:{seed}") for seed in (3, 3, 4)]
    for _ in range(5):
        for run in runs:
            run.step()
    assert_equal(stored(runs[0]), stored(runs[1]))
    assert (stored(runs[0])["fc1.weight"] != stored(runs[2])["fc1.weight"]).any()


# --- training: what follows float32, and what stands still


def far(master: str, steps: int = 60, **options) -> tuple[float, Trained]:
    """Train with steps far below the spacing of the weights, so that rounding alone matters."""
    run = trained(master, optimizer="adam", **options)
    run.optimizer.learning_rate = 2e-4
    start = run.step().loss
    for _ in range(steps):
        loss = run.step().loss
    return start - loss, run


def test_schemes_follow_float32_and_none_does_not() -> None:
    whole = Trained(KIT, mp.Policy.named("float32"), optimizer="adam")
    whole.optimizer.learning_rate = 2e-4
    losses = [whole.step().loss for _ in range(61)]
    wanted = losses[0] - losses[-1]
    for master in ("copy", "split", "kahan", "stochastic"):
        assert far(master)[0] == pytest.approx(wanted, rel=0.2), master
    assert far("none", count_lost_updates="off")[0] < 0.6 * wanted


def test_a_stall_is_told_once_within_20_steps() -> None:
    run = trained("none")
    run.optimizer.learning_rate = 1e-5
    for _ in range(19):
        run.step()
    with pytest.warns(
        mp.MpcoreWarning, match=r"most updates of fc\d .* lost to rounding in the la"
    ) as told:
        run.step()
    assert [one.filename for one in told] == [__file__]
    assert "master=split, kahan or stochastic" in str(told[0].message)
    for _ in range(40):  # warnings are errors: a second one would be raised
        shares = run.step().lost_updates
    assert shares.keys() == {"fc1", "bn", "fc2"}
    assert shares["fc1"] > 0.9
    assert shares["bn"] < 0.5  # float32


@pytest.mark.parametrize(
    ("master", "stall"), [("split", "on"), ("kahan", "on"), ("stochastic", "auto")]
)
def test_healthy_runs_are_silent(master: str, stall: str) -> None:
    run = trained(master, count_lost_updates=stall)
    run.optimizer.learning_rate = 1e-4
    for _ in range(45):
        result = run.step()
    shares = result.lost_updates
    assert shares
    if master != "stochastic":
        assert max(shares.values()) < 0.05
    assert run.step(np.inf).lost_updates == {}


@pytest.mark.parametrize(("master", "stall", "counts"), [
    ("none", "auto", True), ("none", "off", False), ("copy", "auto", False), ("copy", "on", True),
])  # fmt: skip
def test_lost_updates_are_counted_where_asked(master: str, stall: str, counts: bool) -> None:
    run = trained(master, count_lost_updates=stall)
    result = run.step()
    assert (result.lost_updates is not None) is counts
    assert ("lost_updates" in result.to_dict()) is counts
    with pytest.raises(
        mp.BackendError, match="`count_lost_updates` must be one of 'auto', 'on', 'off'"
    ):
        trained("none", count_lost_updates="yes")


# --- saving


@pytest.mark.parametrize("source", ["split", "kahan", "stochastic:3"])
def test_a_saved_run_goes_on_as_if_nothing_had_happened(tmp_path, source: str) -> None:
    run, whole = trained(source, "sgd"), trained(source, "sgd")
    for _ in range(4):
        run.step(), whole.step()
    run.amp.save(tmp_path / "run.amp", weights=True)
    again = trained(source, "sgd")
    assert again.amp.load(tmp_path / "run.amp") == []
    again.optimizer.slots["momentum"] = {
        n: v.copy() for n, v in run.optimizer.slots["momentum"].items()
    }
    assert_equal(again.amp.weights(), run.amp.weights())
    for _ in range(4):
        again.step(), whole.step()
    assert_equal(again.amp.weights(), whole.amp.weights())
    if source == "stochastic:3":
        assert again.amp.optimizer_steps == whole.amp.optimizer_steps == 8


@pytest.mark.parametrize("source", ["copy", "split", "kahan", "stochastic", "none"])
def test_weights_go_from_every_scheme_to_every_scheme(tmp_path, source: str) -> None:
    run = trained(source)
    run.step()
    run.amp.save(tmp_path / "run.amp", weights=True)
    truth = run.amp.weights()
    for name in ("copy", "split", "kahan", "stochastic", "none"):
        other = trained(name)
        differing = other.amp.load(tmp_path / "run.amp", any_policy=True)
        assert bool(differing) is (name != source)
        tolerance = {"kahan": 2.0**-17, "stochastic": 2.0**-8, "none": 2.0**-8}.get(name, 0)
        for key, value in other.amp.weights().items():
            np.testing.assert_allclose(value, truth[key], rtol=tolerance, atol=0)
    whole = Trained(KIT, mp.Policy.named("float32"))
    whole.amp.load(tmp_path / "run.amp", any_policy=True)
    assert_equal(whole.amp.weights(), truth)
    assert whole.step(1.0, X, Y).stepped
