"""Overflows planted into the zoo are found where they are, and the fixes fix.

``MPCORE_OVERFLOWS=300`` runs more of them than every day.
"""

from __future__ import annotations

import os
from collections import Counter

import campaign_overflows
import numpy as np
import pytest
import zoo
from harness import X, Y
from overflows import Plant, Planter

import mpcore as mp
from mpcore.tools.diagnosis.run import case_of, examine, look

# Seeds: Keras compiles each of its steps, and MindSpore's eager kernels are slow to begin.
SEEDS = {
    "torch": range(56),
    "tensorflow": (0, 12, 20, 22, 24),
    "mindspore": (4, 12, 20, 24),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "policy" in metafunc.fixturenames:
        more = ["autocast_float16"] if metafunc.config.getoption("--backend") == "torch" else []
        policies = ["mixed_float16", "model_float16, master=copy", *more]
        metafunc.parametrize("policy", policies)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.backend(name)) for name in SEEDS],
)
def planter(request: pytest.FixtureRequest) -> Planter:
    return Planter(request.param)


def test_planted_overflows_are_found_and_cured(planter: Planter) -> None:
    asked = os.environ.get("MPCORE_OVERFLOWS")
    tally, wrong = Counter(), []
    for seed in range(int(asked)) if asked else SEEDS[planter.name]:
        told, plant, found = campaign_overflows.judged(planter, seed)
        if told["rule"] is not None:
            assert found.fixes
        names = ("right", "curable", "cured")
        tally.update(seen=1, **{name: told[name] for name in names})
        if not told["right"] or told["cured"] != told["curable"] or told["cured for nothing"]:
            wrong.append(f"{seed}: {plant}\n{found}")
    report = "\n\n".join([str(dict(tally)), *wrong])
    print(report)
    assert tally["right"] >= 0.98 * tally["seen"], report
    assert tally["cured"] >= 0.95 * tally["curable"], report


def test_a_cure_holds_for_each_of_two_losses(planter: Planter) -> None:
    """One loss gives the other's parameters a gradient of zeros: it hides no overflow."""
    layer = "g.relu1"
    plant = Plant("activation", "gan", "mixed_float16", layer, wraps={layer: ("times", 1e6)})
    built = planter.build(plant)
    result = built.step(plant)
    assert not result.stepped
    found = mp.diagnose(built.amp, result)
    assert (found.phase, found.layer) == (plant.phase, layer)
    assert planter.build(plant, found.policy).step(plant).stepped, found


def test_a_model_that_was_given_back_is_not_run_again(planter: Planter) -> None:
    layer = "g.relu1"
    plant = Plant("activation", "gan", "mixed_float16", layer, wraps={layer: ("times", 1e6)})
    built = planter.build(plant)
    result = built.step(plant)
    built.amp.release()
    with pytest.raises(mp.MpcoreError, match=r"release|prepare"):
        mp.diagnose(built.amp, result)
    with (
        pytest.raises(mp.MpcoreError, match=r"release|prepare"),
        built.amp._under(built.amp.policy),
    ):
        pass


def _large(loss):
    return lambda *batch: loss(*batch) * 1e7


def test_diagnosing_changes_nothing(planter: Planter, policy: str) -> None:
    """The step after it is bit for bit that of a run in which nobody asked."""
    name = "mlp" if policy in planter.own.NO_NORMS else "separable"
    ended = []
    for asks in (True, False):
        built = planter.build(Plant("", name, policy))
        amp, loss = built.amp, built.loss_fn
        assert amp.step(loss, *built.batch).stepped
        result = amp.step(_large(loss), *built.batch)
        assert not result.stepped
        if asks:
            found = mp.diagnose(amp, result)
            assert (found.step, found.phase, found.scale) == (2, "backward", result.scale)
            assert found.safe_scale
            assert found.safe_scale < found.scale
            assert len(found.tried) > 1  # several policies were on the model
        assert amp.step(loss, *built.batch).stepped
        ended.append((amp.state, amp.weights()))
    assert ended[0][0] == ended[1][0]
    for path, values in ended[0][1].items():
        np.testing.assert_array_equal(values, ended[1][1][path], err_msg=path)


def test_a_micro_batch_and_a_batch_by_hand(planter: Planter) -> None:
    built = planter.build(Plant("", "mlp", "mixed_float16"))
    amp, (x, y) = built.amp, zoo.BATCHES["mlp"](zoo.generator("mlp"))
    x[-1] = 3e5
    result = amp.step(built.loss_fn, *planter.zoo["mlp"].tensors((x, y)), micro_batches=2)
    found = mp.diagnose(amp, result)
    assert (found.phase, found.layer, found.dtype) == ("forward", "fc1", "float16")
    assert found.peak > found.limit == 65504
    assert found.safe_scale is None
    by_hand = mp.diagnose(amp, None, built.loss_fn, x[4:], y[4:])
    assert (by_hand.layer, by_hand.rule) == (found.layer, found.rule)
    x[0, 0] = np.inf
    spoiled = mp.diagnose(amp, result, built.loss_fn, x, y)
    assert (spoiled.rule, spoiled.tried) == (None, ())
    assert "the batch" in spoiled.sentence


def test_what_cannot_be_diagnosed_is_told(planter: Planter) -> None:
    built = planter.build(Plant("", "mlp", "mixed_float16"))
    amp = built.amp
    with pytest.raises(mp.BackendError, match=r"give it by hand: mp\.diagnose"):
        mp.diagnose(amp)
    skipped = amp.step(_large(built.loss_fn), *built.batch)
    real = amp.step(built.loss_fn, *built.batch)
    with pytest.raises(mp.BackendError, match="must be of a skipped step, step 2"):
        mp.diagnose(amp, real)
    with pytest.raises(mp.BackendError, match="must be that of the latest step, 2, got"):
        mp.diagnose(amp, skipped)
    with pytest.raises(mp.BackendError, match="does not overflow when it is run again"):
        mp.diagnose(amp, None, built.loss_fn, *built.batch)


@pytest.mark.backend("torch")
def test_a_loop_of_ones_own_gives_the_batch_by_hand() -> None:
    built = Planter("torch").build(Plant("", "mlp", "mixed_float16"))
    amp, loss = built.amp, _large(built.loss_fn)
    with amp.autocast():
        amp.backward(loss(*built.batch))
    with pytest.raises(mp.BackendError, match="`step` must not"):
        mp.diagnose(amp, None, loss, *built.batch)  # gradients wait
    result = amp.apply()
    with pytest.raises(mp.BackendError, match="give it by hand"):
        mp.diagnose(amp, result)
    found = mp.diagnose(amp, result, loss, *built.batch)
    assert (found.step, found.phase, found.layer) == (1, "backward", "head")


@pytest.mark.backend("torch")
def test_fresh_copies_tell_the_same() -> None:
    planter = Planter("torch")
    plant, built, result = planter.draw(0)

    def again(policy: mp.Policy | None, request):
        one = built if policy is None else planter.build(plant, str(policy))
        return look(one.model, one.amp, one.loss_fn, built.batch, request)

    found = examine(again, case_of(built.model, built.amp, result))
    assert found.to_dict() == mp.diagnose(built.amp, result).to_dict()


@pytest.mark.backend("numpy")
def test_the_numpy_backend_says_that_it_cannot(kit) -> None:
    model = kit.model()
    amp = mp.prepare(model, kit.sgd(model, 0.1, 0.9), "mixed_float16")
    with pytest.raises(mp.BackendError, match="numpy backend cannot be inspected"):
        mp.diagnose(amp, None, kit.loss_fn(model), *kit.batch(X, Y, 1.0))
