"""What each framework's profiler tells of a step; run once per framework with --backend."""

from __future__ import annotations

import pytest
from harness import X, Y

import mpcore as mp
from mpcore.backend.parts import PROFILER
from mpcore.backend.profiler import CAST, LOSS, Spread
from mpcore.tools.profiling.result import BETWEEN, Measured, result_of

RULE = "full path=fc2"


def prepared(kit, policy: str):
    model = kit.model()
    amp = mp.prepare(model, kit.sgd(model, 0.1, 0.9), policy)
    return amp, kit.loss_fn(model), kit.batch(X, Y, 1.0)


@pytest.fixture(scope="module")
def profiler(kit):
    if kit.name == "numpy":
        pytest.skip("the numpy reference has no profiler, as the first test checks")
    return PROFILER.of(kit.name)


@pytest.fixture(scope="module")
def recordings(kit, profiler):
    """One recording of three steps for each policy."""
    found = {}
    for policy in ("float32", f"mixed_float16, loss_scale=none; {RULE}"):
        amp, loss_fn, batch = prepared(kit, policy)
        for _ in range(2):
            amp.step(loss_fn, *batch)
        found[policy.partition(",")[0]] = amp, profiler.record(amp, loss_fn, [batch] * 3)
    return found


def test_a_backend_without_a_profiler_says_so(kit) -> None:
    if kit.name == "numpy":
        with pytest.raises(mp.BackendError, match="numpy backend cannot be profiled"):
            PROFILER.of("numpy")
    else:
        assert PROFILER.of(kit.name).__name__ == f"mpcore_{kit.name}.profile"


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_times_are_no_more_than_the_clocks(recordings, policy: str) -> None:
    amp, recording = recordings[policy]
    wall = sum(recording.seconds)
    assert recording.steps == len(recording.seconds) == 3
    assert all(op.seconds > 0 and op.calls > 0 for op in recording.ops)
    assert 0 < sum(op.seconds for op in recording.ops) <= wall
    result = result_of(Measured(amp.plan, Spread.of(recording.seconds), recording))
    assert sum(row["share"] for row in result["rows"]) == pytest.approx(1)
    assert sum(row["ms"] for row in result["rows"]) == pytest.approx(wall / 3 * 1e3)
    assert result["rows"][-1]["op"] == BETWEEN
    assert result["rows"][-1]["share"] >= 0


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_phases_layers_and_products_are_told(recordings, policy: str) -> None:
    _, recording = recordings[policy]
    products = [op for op in recording.ops if op.op in ("linear", "matmul")]
    for layer in ("fc1", "fc2"):
        for phase in ("forward", "backward"):
            own = [op for op in products if (op.layer, op.phase) == (layer, phase)]
            assert own, (layer, phase)
            low = policy != "float32" and layer == "fc1"
            assert {op.dtype for op in own} == {"float16" if low else "float32"}
            # One product a step forward; the gradients of weights and inputs backward.
            assert sum(op.calls for op in own) >= 3
    assert {op.layer for op in recording.ops} >= {"fc1", "bn", "act", "fc2", LOSS}
    assert {op.phase for op in recording.ops} >= {"forward", "backward", "step", "optimizer"}


def test_casts_come_from_the_policy_alone(recordings) -> None:
    casts = {
        policy: [op for op in recording.ops if op.op == CAST]
        for policy, (_, recording) in recordings.items()
    }
    assert casts["float32"] == []
    directions = {(op.layer, op.dtype) for op in casts["mixed_float16"] if op.phase == "forward"}
    assert ("fc1", "float32 > float16") in directions
    assert ("fc2", "float16 > float32") in directions
    backward = {(op.layer, op.dtype) for op in casts["mixed_float16"] if op.phase == "backward"}
    assert ("fc1", "float16 > float32") in backward  # of the gradients of float32 weights


def test_a_layer_kept_by_a_rule_is_told_with_the_rule(recordings) -> None:
    amp, recording = recordings["mixed_float16"]
    rows = result_of(Measured(amp.plan, Spread.of(recording.seconds), recording))["not_lowered"]
    why = {layer: row["why"] for row in rows for layer in row["layers"]}
    assert why["fc2"] == f"rule: {RULE}"
    assert why["bn"] == "norm: full"
    assert "fc1" not in why


def test_kernels_are_timed_in_both_dtypes(kit, profiler, recordings) -> None:
    amp, recording = recordings["mixed_float16"]
    wanted = sorted({
        name
        for op in recording.ops
        for name in op.kernels
        if op.op in ("linear", "matmul") and op.layer in ("fc1", "fc2")
    })  # fmt: skip
    found = profiler.kernels(amp, kit.loss_fn(amp.model), kit.batch(X, Y, 1.0), wanted, "float16")
    assert {(k.dtype, k.other) for k in found} == {("float16", "float32"), ("float32", "float16")}
    for kernel in found:
        assert kernel.name in wanted
        assert kernel.refused == ""
        for spread in (kernel.now, kernel.then):
            assert 0 < spread.low <= spread.median <= spread.high
        assert kernel.saves.low <= kernel.saves.median <= kernel.saves.high
