"""What every backend promises, a test each; the numpy reference is the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mpcore as mp
from mpcore.conformance.harness import (
    POLICIES,
    Trained,
    X,
    Y,
    assert_same,
    find_kit,
    oracle_weights,
)
from mpcore.scaling.loss_scale import PRESETS
from mpcore.scaling.transition import advance, initial_state

if TYPE_CHECKING:
    from mpcore.backend.kit import Kit

# --- the plan


def test_plan_is_the_same_in_every_framework(kit: Kit) -> None:
    policy = mp.Policy.named("mixed_float16").full("fc2")
    plan = mp.explain(kit.model(), policy)
    rows = [(e.path, e.category, e.param, e.compute, e.output, e.rule) for e in plan.layers]
    assert rows == [
        ("", "container", "", "follow", "float32", "container: follow"),
        ("fc1", "linear", "float32", "float16", "float16", "linear: lower"),
        ("bn", "norm", "float32", "float32", "float16", "norm: full"),
        ("act", "activation", "", "follow", "follow", "activation: follow"),
        ("fc2", "linear", "float32", "float32", "float32", "rule: full path=fc2"),
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_layers_run_in_the_dtypes_that_the_plan_says(kit: Kit, policy: str) -> None:
    trained = Trained(kit, mp.Policy.named(policy))
    seen = kit.layer_dtypes(trained.model, trained.amp, X)
    low = trained.amp.policy.compute
    for path in ("fc1", "fc2"):
        assert seen[path] == low, path
    if "bn" in seen:
        assert seen["bn"] == seen["act"] == low


def test_rule_reaches_the_layer(kit: Kit) -> None:
    trained = Trained(kit, mp.Policy.named("mixed_float16").full("fc2"))
    seen = kit.layer_dtypes(trained.model, trained.amp, X)
    assert (seen["fc1"], seen["fc2"]) == ("float16", "float32")


def test_unused_rule_is_reported(kit: Kit) -> None:
    with pytest.warns(mp.MpcoreWarning, match=r"'full path=head' decided for no layer.*fc1"):
        Trained(kit, mp.Policy.named("mixed_float16").full("head"))


# --- the scaler


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(mp.LossScale(init_scale=64.0, growth_interval=2), id="plain"),
        pytest.param(
            mp.LossScale(init_scale=4.0, growth_interval=1, min_scale=2.0**-3, max_scale=20.0),
            id="floor-and-cap",
        ),
        pytest.param(
            mp.LossScale(
                init_scale=3.0,
                growth_interval=3,
                growth_factor=1.5,
                backoff_factor=0.75,
                min_scale=0.5,
            ),
            id="odd-factors",
        ),
        pytest.param(mp.LossScale.static(128.0), id="static"),
        pytest.param(mp.LossScale.none(), id="none"),
        *(
            pytest.param(mp.LossScale.named(name, init_scale=64.0, growth_interval=3), id=name)
            for name in sorted(PRESETS)
        ),
    ],
)
def test_transition_runs_verbatim_and_bit_equal(kit: Kit, mode: str, rule: mp.LossScale) -> None:
    state = initial_state(rule)
    for finite in np.random.default_rng(3).random(25) < 0.7:
        moved = kit.transition(rule, state, bool(finite), mode)
        try:
            state = advance(rule, state, bool(finite))
        except mp.LossScaleError:
            break  # a traced step cannot raise; what it holds there is nobody's state
        assert tuple(moved) == tuple(state)


def test_injected_pattern_gives_the_same_trajectory(kit: Kit, mode: str) -> None:
    rule = mp.LossScale(init_scale=2.0**10, growth_interval=2, min_scale=2.0**6)
    trained = Trained(kit, mp.Policy.named("mixed_float16").with_loss_scale(rule), mode)
    state = initial_state(rule)
    for bad in [0, 0, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0]:
        result = trained.step(float("inf") if bad else 1.0)
        assert result.scale == state.scale
        assert result.stepped is not bool(bad)
        state = advance(rule, state, not bad)
        assert result.next_scale == state.scale
        assert trained.amp.state == state


# --- the transaction


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("policy", POLICIES)
def test_skipped_step_changes_nothing_but_the_scale(
    kit: Kit, mode: str, policy: str, optimizer: str
) -> None:
    trained = Trained(kit, mp.Policy.named(policy), mode, optimizer)
    assert trained.step().stepped
    before = trained.snapshot()
    for boost in (float("inf"), float("nan"), float("-inf")):
        result = trained.step(boost, x=X * 100)
        assert not result.stepped
        assert_same(before, trained.snapshot())
    assert trained.amp.state.skipped_steps == 3
    assert trained.step().stepped
    after = trained.snapshot()
    assert any((before[name] != after[name]).any() for name in before)


def test_overflow_in_the_forward_pass_leaves_batch_norm_alone(kit: Kit, mode: str) -> None:
    """F1: natives skip the update but keep running statistics of inf."""
    trained = Trained(kit, mp.Policy.named("mixed_float16"), mode)
    trained.step()
    before = trained.snapshot()
    result = trained.step(x=X * np.float32(1e6))
    assert not result.stepped
    reason = str(result.reason)
    assert reason.startswith("the loss is") or "non-finite" in reason
    assert_same(before, trained.snapshot())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_run_with_bad_batches_equals_run_without(kit: Kit, mode: str, optimizer: str) -> None:
    policy = mp.Policy.parse("float32, loss_scale=dynamic(init_scale=1024, growth_interval=4)")
    runs = []
    for pattern in ([0, 0, 1, 0, 1, 1, 0], [0, 0, 0, 0]):
        trained = Trained(kit, policy, mode, optimizer)
        good = 0
        for bad in pattern:
            x = np.roll(X, good, axis=0) * np.float32(1 + good)
            trained.step(float("inf") if bad else 1.0, x=x)
            good += not bad
        runs.append(trained.snapshot())
    assert_same(*runs)


def test_clip_acts_on_true_gradients(kit: Kit, mode: str) -> None:
    rule = mp.LossScale(init_scale=2.0**12)
    policy = mp.Policy().with_loss_scale(rule)
    free, clipped = Trained(kit, policy, mode), Trained(kit, policy, mode, clip_norm=0.05)
    norm = free.step().grad_norm
    assert norm > 0.05
    before = clipped.snapshot()
    result = clipped.step()
    assert result.grad_norm == pytest.approx(norm, rel=1e-5)
    after = clipped.snapshot()
    moved = [
        np.linalg.norm(after[name] - before[name])
        for name in before
        if before[name].shape in ((16, 8), (8, 16), (16, 4), (4, 16))
        and not np.array_equal(before[name], np.zeros_like(before[name]))
    ]
    # first step of momentum SGD: the update is learning rate times the clipped gradient
    assert 0 < np.linalg.norm(moved) <= 0.1 * 0.05 * (1 + 1e-4)


def test_result_names_the_culprit_and_reads_as_data(kit: Kit, mode: str) -> None:
    trained = Trained(kit, mp.Policy.named("mixed_float16"), mode)
    result = trained.step(3e38)
    record = result.to_dict()
    assert record["stepped"] is False
    assert result.culprit is not None
    assert result.culprit.split(".")[0] in ("fc1", "bn", "fc2")
    assert result.culprit in record["reason"] or "loss is" in record["reason"]
    good = trained.step(2.0**-20)
    assert good.culprit is None
    assert good.reason is None
    assert good.grad_norm > 0


def test_gradients_are_those_of_the_reference(kit: Kit, mode: str) -> None:
    reference = find_kit("numpy")
    wanted = Trained(reference, "float32", weights=oracle_weights()).step()
    trained = Trained(kit, "float32", mode, weights=oracle_weights())
    result = trained.step()
    assert result.loss == pytest.approx(wanted.loss, rel=1e-6)
    grads = kit.gradients(trained.model, result.grads)
    for name, value in reference.gradients(None, wanted.grads).items():
        np.testing.assert_allclose(grads[name], value, rtol=2e-5, atol=2e-7)


@pytest.mark.parametrize("policy", POLICIES)
def test_training_follows_the_reference(kit: Kit, mode: str, policy: str) -> None:
    """Same weights, same batches: losses stay within a few units of the compute format."""
    losses = {}
    for name in ("numpy", kit.name):
        own, how = (kit, mode) if name == kit.name else (find_kit(name), "eager")
        trained = Trained(own, policy, how, weights=oracle_weights())
        losses[name] = [trained.step(x=np.roll(X, i, 0)).loss for i in range(8)]
    tolerance = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
    low = mp.Policy.named(policy).compute
    np.testing.assert_allclose(losses[kit.name], losses["numpy"], rtol=tolerance[low])
    assert losses[kit.name][-1] < losses[kit.name][0]


def test_rule_that_ends_the_run_raises_and_moves_nothing(kit: Kit) -> None:
    policy = mp.Policy.named("mixed_float16").with_loss_scale(mp.LossScale.of(max_skips=2))
    trained = Trained(kit, policy)
    trained.step()
    before = trained.snapshot()
    for _ in range(2):
        trained.step(float("inf"))
    with pytest.raises(mp.LossScaleError, match="more than 2 steps in a row overflowed"):
        trained.step(float("inf"))
    assert_same(before, trained.snapshot())
    assert trained.amp.state.skips_in_a_row == 3
    assert trained.step().stepped


def test_failing_loss_function_leaves_everything_as_it_was(kit: Kit) -> None:
    if not kit.differentiates:
        pytest.skip("its loss function is its own backward pass")
    trained = Trained(kit, mp.Policy.named("mixed_float16"))
    trained.step()
    before = trained.snapshot()

    def failing(x: Any, y: Any, boost: Any) -> None:
        trained.loss_fn(x, y, boost)
        msg = "planted"
        raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="planted"):
        trained.amp.step(failing, *kit.batch(X, Y, 1.0))
    assert_same(before, trained.snapshot())
    assert trained.step().stepped


# --- refusals


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan"), float("inf")])
def test_clip_norm_must_be_positive(kit: Kit, clip_norm: float) -> None:
    trained = Trained(kit, "float32")
    before = trained.snapshot()
    with pytest.raises(mp.BackendError, match="`clip_norm` must be finite and > 0, or None"):
        trained.amp.step(trained.loss_fn, *kit.batch(X, Y, 1.0), clip_norm=clip_norm)
    assert_same(before, trained.snapshot())


def test_native_machine_at_scale_zero_skips_instead_of_writing_nan(kit: Kit) -> None:
    """F2: torch's own machine reaches 0; the step then sees 0 * inf and keeps the weights."""
    rule = mp.LossScale.named("torch", init_scale=2.0**-126, on_collapse="ignore")
    trained = Trained(kit, mp.Policy().with_loss_scale(rule))
    before = trained.snapshot()
    for _ in range(30):
        trained.step(float("inf"))
    assert not trained.step().stepped
    assert_same(before, trained.snapshot())


def test_optimizer_of_another_model_is_refused(kit: Kit) -> None:
    if not kit.optimizer_holds_parameters:
        pytest.skip("its optimizers know names and shapes of parameters, not which they are")
    model, other = kit.model(), kit.model()
    stranger = kit.sgd_over(other, ("fc1", "bn", "fc2"), 0.1)
    with pytest.raises(mp.OptimizerError, match="must hold parameters of `model`"):
        mp.prepare(model, stranger, "float32")


def test_optimizer_of_another_framework_is_refused(kit: Kit) -> None:
    with pytest.raises(mp.OptimizerError, match="`optimizer` must be"):
        mp.prepare(kit.model(), object(), "float32")


def test_model_is_prepared_once(kit: Kit) -> None:
    if not kit.changes_model:
        pytest.skip("it changes nothing in the model")
    trained = Trained(kit, "mixed_bfloat16")
    assert mp.prepare(trained.model, trained.optimizer, "mixed_bfloat16") is trained.amp
    with pytest.raises(mp.BackendError, match="must not be prepared twice"):
        mp.prepare(trained.model, trained.optimizer, "float32")
    with pytest.raises(mp.BackendError, match="prepared twice with another `strict`: call"):
        mp.prepare(trained.model, trained.optimizer, "mixed_bfloat16", strict=False)


def test_unknown_object_is_refused(kit: Kit) -> None:
    with pytest.raises(mp.BackendError, match=r"`model` must be a torch\.nn\.Module"):
        mp.prepare(object(), None, "float32")


def test_mechanism_that_is_absent_is_refused_with_the_reason(kit: Kit) -> None:
    can = mp.load_backend(kit.name).capabilities(kit.model())
    if can.by["op"].level != "absent":
        pytest.skip(f"{kit.name} has op lists")
    model = kit.model()
    with pytest.raises(mp.BackendError, match=r"by='op' is not possible in .*it has by='layer'"):
        mp.prepare(model, kit.sgd(model, 0.1, 0.0), "autocast_bfloat16")
