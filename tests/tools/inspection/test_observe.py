"""A trace beside its plan: what agrees, what does not, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import mpcore as mp
from mpcore.policy.layer import Layer, ParamInfo
from mpcore.policy.plan import resolve_plan
from mpcore.tools.inspection.observe import judge
from mpcore.tools.inspection.trace import Call, LayerTrace, OpCall, Trace, widest

W = (ParamInfo("weight", (8, 8), "float32"),)
LAYERS = [
    Layer("", "container", "Net"),
    Layer("fc", "linear", "Linear", W, op="linear"),
    Layer("act", "activation", "ReLU", op="relu"),
    Layer("norm", "norm", "LayerNorm", W, op="layer_norm"),
]
LOW, FULL = ("bfloat16",), ("float32",)
SEEN = {
    "": Call(FULL, (), (), FULL, FULL, (), FULL),
    "fc": Call(FULL, FULL, LOW, LOW, LOW, LOW, FULL),
    "act": Call(LOW, (), LOW, LOW, LOW, LOW, LOW),
    "norm": Call(LOW, FULL, FULL, LOW, LOW, FULL, LOW),
}


def judged(path: str = "fc", policy: str = "mixed_bfloat16", system: str = "", **fields: object):
    calls = SEEN | {path: replace(SEEN[path], **fields)}  # type: ignore[arg-type]
    trace = Trace({p: LayerTrace((call,)) for p, call in calls.items()})
    return judge(resolve_plan(mp.Policy.parse(policy), LAYERS), trace, system)


def test_a_trace_that_does_what_the_plan_says() -> None:
    found = judged()
    assert found.agreement == 1
    assert found.differing == ()
    assert str(found).count("4 of 4 layers did what the plan says") == 1


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("fc", {"kernels": FULL}, "planned to compute in bfloat16, computed in float32"),
        ("fc", {"kernels": (*LOW, *FULL)}, "computed in bfloat16+float32"),
        ("fc", {"went": FULL}, "planned to hand on bfloat16, handed on float32"),
        ("fc", {"grad_kernels": FULL}, "its gradients were computed in float32"),
        ("fc", {"grad_came": FULL}, "the gradient of its output is float32, the tensor bfloat16"),
        ("fc", {"grad_went": LOW}, "the gradient of its input is bfloat16, the tensor float32"),
        ("norm", {"kernels": LOW}, "planned to compute in float32, computed in bfloat16"),
        ("", {"went": LOW}, "planned to hand on float32, handed on bfloat16"),
        ("act", {"came": FULL}, "planned to compute in float32, computed in bfloat16"),
    ],
)
def test_every_difference_is_named(path: str, fields: dict, words: str) -> None:
    found = judged(path, **fields)
    assert [row.path for row in found.differing] == [path]
    assert words in "; ".join(found[path].faults)
    assert words in str(found)
    assert found.agreement == 0.75


def test_one_that_follows_may_compute_in_more() -> None:
    assert judged("act", kernels=FULL).agreement == 1


def test_a_layer_that_was_not_called_is_not_judged() -> None:
    plan = resolve_plan(mp.Policy.named("mixed_bfloat16"), LAYERS)
    found = judge(plan, Trace({"fc": LayerTrace((SEEN["fc"],))}))
    assert [row.path for row in found.layers if row.judged] == ["fc"]
    assert "not called" in str(found)


def test_op_lists_are_asked_by_the_layers_own_name() -> None:
    relu = judged(policy="autocast_bfloat16", system="torch_cpu")
    assert relu["act"].compute == "bfloat16"
    assert relu["norm"].compute == "float32"  # it follows, beside float32 parameters
    pool = Layer("pool", "pooling", "MaxPool2d", op="max_pool")
    deep = replace(pool, type="MaxPool3d")
    for layer, compute in ((pool, "bfloat16"), (deep, "float32")):
        plan = resolve_plan(mp.Policy.named("autocast_bfloat16"), [layer])
        trace = Trace({"pool": LayerTrace((SEEN["act"],))})
        assert judge(plan, trace, "torch_cpu")["pool"].compute == compute


def test_ops_outside_of_layers() -> None:
    plan = resolve_plan(mp.Policy.named("autocast_bfloat16"), LAYERS)
    softmax = OpCall("", "F.softmax", "softmax", LOW, LOW, LOW)
    rows = {s: judge(plan, Trace({}, (softmax,)), s).ops[0] for s in ("torch_cpu", "torch_cuda")}
    assert rows["torch_cpu"].faults == ()
    assert rows["torch_cpu"].why == "torch_cpu does not list softmax: follow"
    assert rows["torch_cuda"].faults[0] == "predicted to compute in float32, computed in bfloat16"
    ruled = resolve_plan(mp.Policy.parse("autocast_bfloat16; full op=softmax"), LAYERS)
    row = judge(ruled, Trace({}, (softmax,)), "torch_cpu").ops[0]
    assert (row.compute, "full op=softmax" in row.why) == ("float32", True)


def test_a_recomputed_layer_in_another_dtype_is_told() -> None:
    plan = resolve_plan(mp.Policy.named("mixed_bfloat16"), LAYERS)
    again = replace(SEEN["fc"], kernels=FULL, went=FULL)
    for calls, notes in (((SEEN["fc"],), 0), ((again,), 1)):
        found = judge(plan, Trace({"fc": LayerTrace((SEEN["fc"],), calls)}))
        assert len(found.notes) == notes
    assert "fc ran float32 > bfloat16 > bfloat16 in the forward pass" in found.notes[0]


@pytest.mark.parametrize(("peak", "told"), [(256.0, 0), (2909.0, 1), (0.0, 0)])
def test_whole_numbers_that_are_rounded_are_told(peak: float, told: int) -> None:
    plan = resolve_plan(mp.Policy.named("mixed_bfloat16"), LAYERS)
    trace = Trace({"fc": LayerTrace((SEEN["fc"],), (), peak)}, (), {"batch[0]": peak})
    notes = judge(plan, trace).notes
    assert len(notes) == told
    assert not told or "fc: whole numbers up to 2909" in notes[0]
    full = resolve_plan(mp.Policy.named("float32"), LAYERS)
    assert judge(full, Trace({"fc": LayerTrace((Call(FULL),), (), peak)})).notes == ()


def test_simulated_values_are_looked_for_where_they_are_promised() -> None:
    plan = resolve_plan(mp.Policy.named("mixed_bfloat16"), LAYERS)
    calls = SEEN | {"act": replace(SEEN["act"], kernels=FULL, went=FULL)}
    trace = Trace(
        {p: LayerTrace((c,)) for p, c in calls.items()}, backward=False, simulated="bfloat16"
    )
    assert judge(plan, trace).agreement == 1
    calls["fc"] = replace(calls["fc"], kernels=FULL)
    trace = replace(trace, layers={p: LayerTrace((c,)) for p, c in calls.items()})
    assert [row.path for row in judge(plan, trace).differing] == ["fc"]


def test_it_is_data() -> None:
    data = json.loads(json.dumps(judged("fc", kernels=FULL).to_dict()))
    assert (data["format"], data["agreement"]) == ("mpcore-observation", 0.75)
    row = next(row for row in data["layers"] if row["path"] == "fc")
    assert row["agree"] is False
    assert row["seen"]["calls"][0]["kernels"] == ["float32"]


def test_widest() -> None:
    assert widest(("float16", "bfloat16")) == "float32"
    assert widest(("float32", "float64", "float16")) == "float64"


def test_a_backend_that_cannot_be_observed_says_so() -> None:
    from mpcore.tools.inspection.recorder import RECORDER

    with pytest.raises(mp.BackendError, match="numpy backend cannot be observed"):
        RECORDER.of("numpy")
