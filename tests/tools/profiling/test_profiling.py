"""Sums, reasons, rules and sentences of a profile, on made-up recordings."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import mpcore as mp
from mpcore.backend.profiler import CAST, LOSS, KernelTime, OpTime, Recording, Spread
from mpcore.policy.layer import Layer, ParamInfo
from mpcore.policy.plan import resolve_plan
from mpcore.tools.profiling.result import BETWEEN, Measured, result_of
from mpcore.tools.profiling.rules import candidates, reason, together
from mpcore.tools.profiling.table import advice, show
from mpcore.tools.profiling.timing import Event, in_turn, own_times
from mpcore.tools.profiling.values import Versus

LOW, WIDE = "bfloat16", "float32"
WEIGHT = (ParamInfo("weight", (4, 4), WIDE),)
LAYERS = [
    Layer("", "container", "Net"),
    Layer("blocks", "container", "Sequential"),
    *(Layer(f"blocks.{i}.fc", "linear", "Linear", WEIGHT, "linear") for i in range(2)),
    *(Layer(f"blocks.{i}.norm", "norm", "LayerNorm", WEIGHT, "layer_norm") for i in range(2)),
    Layer("head", "linear", "Linear", WEIGHT, "linear"),
]
MIXED = "mixed_bfloat16; full path=head"


def spread(value: float) -> Spread:
    return Spread(value, value, value)


def kernel(name: str, dtype: str, saves: float) -> KernelTime:
    other = WIDE if dtype == LOW else LOW
    return KernelTime(name, dtype, other, spread(1.0), spread(1.0 - saves), spread(saves))


def op(name: str, phase: str, dtype: str, layer: str | None, seconds: float, **more) -> OpTime:
    kernels = {f"{name} {phase}": (2, seconds)} if name != CAST else {}
    return OpTime(name, phase, dtype, layer, seconds, 2, kernels=kernels, **more)


OPS = (
    *(op("linear", "forward", LOW, f"blocks.{i}.fc", 0.10) for i in range(2)),
    *(op("linear", "backward", LOW, f"blocks.{i}.fc", 0.20) for i in range(2)),
    *(op(CAST, "forward", f"{WIDE} > {LOW}", f"blocks.{i}.fc", 0.02) for i in range(2)),
    *(op("layer_norm", "forward", WIDE, f"blocks.{i}.norm", 0.08) for i in range(2)),
    op("linear", "forward", WIDE, "head", 0.05),
    op("attention", "backward", LOW, "blocks", 0.30),
    op(CAST, "forward", f"{LOW} > {WIDE}", "blocks", 0.03, cause="attention"),
    op("cross_entropy", "forward", WIDE, LOSS, 0.01),
    op("AccumulateGrad", "backward", WIDE, None, 0.01),
    op("sgd", "optimizer", WIDE, None, 0.04),
)
RECORDING = Recording(2, (1.0, 1.0), OPS, "a profiler", ("a note",))
KERNELS = [
    kernel("linear forward", LOW, -0.04),
    kernel("linear backward", LOW, 0.01),
    kernel("attention backward", LOW, 0.12),
    kernel("layer_norm forward", WIDE, 0.03),
]


def plan(policy: str = MIXED):
    return resolve_plan(mp.Policy.parse(policy), LAYERS, "cpu")


def versus(policy: str, rule: str, now: float, saves: float, off: float = 0.0) -> Versus:
    saved = Spread(saves, saves - off, saves + off)
    apart = abs(saves) > max(off, 0.01 * now)
    told = ("faster" if saves > 0 else "slower") if apart else ""
    return Versus(policy, rule, "why", spread(now), spread(now - saves), saved, 9, told)


def result(**more):
    found = result_of(Measured(plan(), spread(0.8), RECORDING, KERNELS, **more))
    about = {"backend": "torch", "device": "cpu", "versions": {"torch": "2.13"}, "threads": 1}
    return found | about | {"batch": 4, "error": "", "load": 0.1, "cores": 2}


# --- sums -------------------------------------------------------------------------------------

_EVENTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 2)), min_size=1, max_size=12
)


@given(_EVENTS)
def test_own_times_share_the_clock(drawn) -> None:
    events = [Event(start, start + lasts, thread) for start, lasts, thread in drawn]
    covered = {tick for e in events for tick in range(int(e.start), int(e.end))}
    own = own_times(events)
    assert sum(own) == pytest.approx(len(covered))
    assert all(0 <= o <= e.end - e.start + 1e-9 for o, e in zip(own, events, strict=True))


def test_rows_add_up_to_the_step() -> None:
    found = result()
    rows = found["rows"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["ms"] for row in rows) == pytest.approx(found["profiled_step_ms"]) == 1000
    assert rows[-1]["op"] == BETWEEN
    assert [row["ms"] for row in rows[:-1]] == sorted((r["ms"] for r in rows[:-1]), reverse=True)
    assert rows[0] == {
        "op": "linear", "phase": "backward", "dtype": LOW, "calls": 2.0, "ms": 200.0, "share": 0.2,
        "layers": ["blocks.*.fc"],
    }  # fmt: skip
    assert found["profiler_overhead"] == pytest.approx(0.25)
    assert sum(o["ms"] for o in found["ops"]) == pytest.approx(1000 - rows[-1]["ms"])


def test_casts_are_told_with_their_cause() -> None:
    casts = result()["casts"]
    assert casts["share"] == pytest.approx(0.07 / 2)
    told = [(row["layer"], row["dtype"], row["cause"], round(row["ms"])) for row in casts["rows"]]
    assert told == [
        ("blocks.*.fc", f"{WIDE} > {LOW}", "", 20),
        ("blocks", f"{LOW} > {WIDE}", "attention", 15),
    ]


# --- reasons ----------------------------------------------------------------------------------


def test_not_lowered_are_told_with_what_keeps_them() -> None:
    rows = {row["op"]: row for row in result()["not_lowered"]}
    assert rows.keys() == {"layer_norm", "linear", "cross_entropy", "AccumulateGrad"}
    assert rows["linear"]["why"] == "rule: full path=head"
    assert rows["layer_norm"]["why"] == "norm: full"
    assert rows["layer_norm"]["saves_ms"] == pytest.approx(2 * 2 * 0.03 / 2 * 1e3)
    assert rows["cross_entropy"]["saves_ms"] is None  # none of its kernels was timed
    assert rows["AccumulateGrad"]["why"] == "gradients of float32 parameters"


@pytest.mark.parametrize(
    ("policy", "layer", "name", "why"),
    [
        ("mixed_bfloat16", "blocks", "add_sub", "called outside of layers"),
        ("mixed_bfloat16", LOSS, "mse_loss", "outside of the model"),
        ("mixed_bfloat16", None, "x", "its layer cannot be told"),
        ("mixed_bfloat16", "head", "sum", "a part that its kernel keeps wide"),
        ("autocast_bfloat16", "blocks", "softmax", "the op list leaves it"),
        ("autocast_bfloat16; full op=softmax", "blocks", "softmax", "rule: full op=softmax"),
        ("autocast_bfloat16", "head", "linear", "the op list keeps it"),
    ],
)
def test_reasons(policy: str, layer: str | None, name: str, why: str) -> None:
    assert why in reason(op(name, "forward", WIDE, layer, 1.0), plan(policy))


def test_float32_has_nothing_to_lower_and_no_rules() -> None:
    found = result_of(Measured(plan("float32"), spread(1.0), RECORDING))
    assert found["not_lowered"] == []
    assert candidates(plan("float32"), LAYERS, OPS, 2, KERNELS) == []


# --- rules ------------------------------------------------------------------------------------


def test_rules_by_layer_promise_what_kernels_and_casts_would_save() -> None:
    found = {c.rule or c.policy: c for c in candidates(plan(), LAYERS, OPS, 2, KERNELS)}
    assert list(found) == [
        # No layer's rule reaches a function; the policy's own rules stay.
        "autocast_bfloat16; full path=head; full op=attention",
        "lower path=blocks.*.norm",
    ]
    norm = found["lower path=blocks.*.norm"]
    assert norm.seconds == pytest.approx(2 * 2 * 0.03 / 2)
    assert mp.Policy.parse(norm.policy) == mp.Policy.parse(f"{MIXED}; lower path=blocks.*.norm")
    # Slower forward outweighs faster backward: no rule for the blocks' linear layers ...
    faster = [replace(k, saves=spread(0.05)) if "linear" in k.name else k for k in KERNELS]
    words = [c.rule for c in candidates(plan(), LAYERS, OPS, 2, faster)]
    # ... and when float32 wins there is one, which still hands on the low dtype.
    assert "full>lower path=blocks.*.fc" in words


def test_one_rule_for_all_layers_of_a_type() -> None:
    both = [*OPS, op("linear", "forward", LOW, "head", 0.2)]
    faster = [kernel("linear forward", LOW, 0.05)]
    found = candidates(plan("mixed_bfloat16"), LAYERS, both, 2, faster)
    # Those for its parts promise less, and are left out ...
    assert [c.rule for c in found] == ["full>lower layer=Linear"]
    # ... and where the head does better in 16 bits, the part promises more.
    own = [replace(o, kernels={"head": (2, 0.1)}) if o.layer == "head" else o for o in both]
    slower = [*faster, kernel("head", LOW, -0.01)]
    found = candidates(plan("mixed_bfloat16"), LAYERS, own, 2, slower)
    assert [c.rule for c in found] == ["full>lower path=blocks.*.fc", "full>lower layer=Linear"]


def test_a_pattern_that_means_other_layers_too_is_no_rule() -> None:
    layers = [*LAYERS, Layer("blocks.9.norm", "linear", "Linear", WEIGHT, "linear")]
    found = candidates(resolve_plan(mp.Policy.parse(MIXED), layers, "cpu"), layers, OPS, 2, KERNELS)
    assert [c.rule for c in found if "norm" in c.policy] == []


def test_rules_by_op_reach_functions() -> None:
    found = candidates(plan("autocast_bfloat16"), LAYERS, OPS, 2, KERNELS)
    assert [c.rule for c in found] == ["full op=attention", "lower op=layer_norm"]


def test_rules_that_helped_are_tried_together_once() -> None:
    policy = mp.Policy.parse("mixed_bfloat16")
    tried = [
        versus("a", "full path=a", 1.0, 0.1),
        versus("b", "full path=b", 1.0, 0.05),
        versus("c", "full path=c", 1.0, 0.001),
    ]
    (both,) = together(policy, tried)
    assert both.rule == "full path=a; full path=b"
    assert mp.Policy.parse(both.policy) == policy.full("a", "b")
    assert together(policy, [*tried, versus(both.policy, both.rule, 1.0, 0.2)]) == []
    assert together(policy, tried[:1]) == []


@pytest.mark.parametrize(
    ("saves", "off", "sure"),
    [(0.1, 0.05, True), (-0.1, 0.05, True), (0.1, 0.2, False), (0.005, 0, False)],
)
def test_sure_is_one_sided_and_over_a_percent(saves: float, off: float, sure: bool) -> None:
    assert versus("p", "", 1.0, saves, off).sure is sure


# --- words ------------------------------------------------------------------------------------


def test_slower_than_float32_is_said_with_numbers_and_advice() -> None:
    helps = versus(f"{MIXED}; full path=blocks", "full path=blocks", 0.040, 0.010)
    lines = advice(result(versus=[versus("float32", "", 0.040, 0.030), helps]))
    told = f"{plan().policy} takes 40 ms a step, float32 10 ms: 4.00 times SLOWER"
    assert lines[0].startswith(told)
    assert "casts take 35 ms" in lines[0]
    assert "where speed is what counts" in lines[0]  # the rule that helps leaves it at 30 ms
    assert lines[1].startswith(f"try --policy '{MIXED}; full path=blocks': it saves 10 ms of 40")
    assert lines[-1] == "note: a note"


@pytest.mark.parametrize(
    ("rule", "warns"), [("lower path=a", True), ("full>lower path=a", False)]
)  # fmt: skip
def test_advice_to_lower_asks_to_check_the_accuracy(rule: str, warns: bool) -> None:
    lines = advice(result(versus=[versus("p", rule, 0.04, 0.01)]))
    assert ("check the accuracy" in lines[0]) is warns


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"versus": [versus("float32", "", 0.02, -0.02)]}, "2.00 times faster"),
        ({"versus": [versus("float32", "", 0.02, 0.001, 0.1)]}, "too close to tell"),
        ({"simulated": True}, "simulated here"),
        ({"versus": [versus("x", "full path=x", 0.02, -0.01)]}, "no rule that was tried makes"),
        ({"untried": ["full op=x: refused"]}, "not possible here: full op=x: refused"),
        ({"skipped": 1}, "skipped 1 of 2 recorded steps"),
    ],
)
def test_sentences(more, said: str) -> None:
    assert said in "\n".join(advice(result(**more)))


def test_a_busy_machine_is_told() -> None:
    assert "busy (load 7.0 on 2 cores)" in "\n".join(advice(result() | {"load": 7.0}))


def test_table_fits_80_columns_and_json_holds_its_figures() -> None:
    found = result(versus=[versus("float32", "", 0.04, 0.03), versus("p", "full op=x", 0.04, 0.01)])
    told = json.loads(json.dumps(found, allow_nan=False))
    out = io.StringIO()
    show(Console(file=out, width=80), told, 10)
    table = out.getvalue().partition("takes")[0]
    lines = [line for line in table.splitlines() if line[:1] in " 123456789-+"]
    assert max(map(len, lines)) <= 80
    for row in told["rows"]:
        assert f"{row['share']:.1%}" in table
        assert f"{row['ms']:.3g}" in table
    assert "100.0%" in table
    for words in ("casts: 35 ms, 3.5% of the step", "rule: full path=head", "full op=x", "+25.0%"):
        assert words in table, words


def test_a_failed_profile_is_one_line() -> None:
    out = io.StringIO()
    failed = {"backend": "torch", "policy": "float32", "error": "it broke"}
    show(Console(file=out), failed, 10)
    assert out.getvalue().split("\n") == ["", "torch float32: failed: it broke", ""]


def test_kernels_run_in_turn() -> None:
    calls: list[str] = []
    found = in_turn(
        KernelTime("k", LOW, WIDE, spread(0.0)),
        lambda: calls.append("now"),
        lambda: calls.append("then"),
    )
    assert (found.name, found.dtype, found.other) == ("k", LOW, WIDE)
    assert calls.count("now") == calls.count("then") > 3
    assert found.now.median > 0
    assert found.saves is not None


def test_products_beside_a_slow_function_are_tried_full() -> None:
    layers = [
        Layer("", "container", "Net"),
        *(
            layer
            for i in range(2)
            for layer in (
                Layer(f"b.{i}", "container", "Block"),
                Layer(f"b.{i}.qkv", "linear", "Linear", WEIGHT, "linear"),
                Layer(f"b.{i}.out", "linear", "Linear", WEIGHT, "linear"),
                Layer(f"b.{i}.norm", "norm", "LayerNorm", WEIGHT, "layer_norm"),
            )
        ),
        Layer("head", "linear", "Linear", WEIGHT, "linear"),
    ]
    found = resolve_plan(mp.Policy.parse("mixed_bfloat16"), layers, "cpu")
    slow = [op("attention", "backward", LOW, f"b.{i}", 0.3) for i in range(2)]
    tried = candidates(found, layers, slow, 1, KERNELS)
    rules = {one.rule: one.reach for one in tried if one.rule}
    wanted = [{f"b.{i}.{name}" for i in range(2)} for name in ("qkv", "out")]
    assert sorted(map(sorted, rules.values())) == sorted(map(sorted, wanted))
    for one in tried:
        if one.rule:
            plan_then = resolve_plan(mp.Policy.parse(one.policy), layers, "cpu")
            full = {e.path for e in plan_then.layers if e.compute == WIDE and e.path in one.reach}
            assert full == one.reach
