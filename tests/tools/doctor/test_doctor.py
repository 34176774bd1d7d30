"""The doctor's conclusions from planted facts, and its right answers against finite differences."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcore.capabilities import cases
from mpcore.capabilities.differences import Shown
from mpcore.capabilities.examine import read_cpu, requirements
from mpcore.capabilities.load import Moment, moment, used_by_others
from mpcore.policy.layer import CATEGORIES
from mpcore.policy.policy import Policy
from mpcore.tools.doctor.doctor import (
    BUSY,
    EMULATED,
    KNOWN_BAD,
    PAYS,
    SLOW,
    Fact,
    Framework,
    Machine,
    Report,
    advice,
    examine,
    judge,
    recommend,
    satisfies,
    speed,
    table,
    to_dict,
)

PLAIN = Machine("a CPU", 2, ("avx2",), "Linux x86_64", "3.11.7", {})
ABLE = replace(PLAIN, flags=("avx512_bf16", "avx512_fp16"))


def rows(*facts: Fact, **fields: object) -> Framework:
    return Framework("torch", "ok", device="cpu", facts=facts, **fields)  # type: ignore[arg-type]


def pair(family: str, dtype: str, times: float, **fields: object) -> tuple[Fact, Fact]:
    """Return float32 at one second, and ``dtype`` that is ``times`` as fast."""
    own = Fact(family, dtype, seconds=(1 / times,) * 4, **fields)  # type: ignore[arg-type]
    return Fact(family, "float32", seconds=(1.0,) * 4), own


def level(fact: Fact, base: Fact | None, machine: Machine = ABLE, **fields: object) -> str:
    return judge(fact, base, rows(**fields), machine).level


# --- levels ---------------------------------------------------------------------------------


def test_an_error_at_the_limit_is_right_and_beyond_it_wrong() -> None:
    base = Fact("matmul", "float32")
    assert level(Fact("matmul", "bfloat16", error=1.0), base) == "native"
    assert level(Fact("matmul", "bfloat16", error=float(np.nextafter(1.0, 2.0))), base) == "wrong"
    assert level(Fact("matmul", "float32", error=1.01), None) == "wrong"


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_result_that_is_not_finite_is_wrong(value: float) -> None:
    assert level(Fact("lstm", "float16", error=value, worst="d_x"), None) == "wrong"


def test_wrong_says_whether_it_is_the_gradients() -> None:
    for worst, word in (("y", "results"), ("d_w", "gradients")):
        found = judge(Fact("lstm", "float16", error=4.7, worst=worst), None, rows(), ABLE)
        assert found.why == f"{word} off 4.7 x the limit"


def test_refused_is_absent_or_what_the_backend_does_instead() -> None:
    fact = Fact("matmul", "bfloat16", refused="TypeError: no kernel")
    assert level(fact, None) == "absent"
    assert level(fact, None, support={"bfloat16": ("simulated", "rounds")}) == "simulated"
    assert level(fact, None, support={"bfloat16": ("native", "")}) == "absent"


def test_gradients_count_where_float32_has_them() -> None:
    fact = Fact("matmul", "float16", forward_only="no kernel")
    assert level(fact, Fact("matmul", "float32")) == "absent"
    assert level(fact, Fact("matmul", "float32", forward_only="none at all")) == "native"


def test_emulated_by_the_flags_unless_it_is_faster() -> None:
    for times, expected in ((1.0, "emulated"), (PAYS - 0.01, "emulated"), (PAYS + 0.01, "native")):
        base, own = pair("matmul", "float16", times)
        assert level(own, base, PLAIN) == expected
    untimed = (Fact("matmul", "float16"), Fact("matmul", "float32"))
    assert level(*untimed, PLAIN) == "emulated"
    assert level(*untimed, ABLE) == "native"


def test_emulation_is_not_known_without_flags_or_on_another_device() -> None:
    untimed = (Fact("matmul", "float16"), Fact("matmul", "float32"))
    assert level(*untimed, replace(PLAIN, flags=None)) == "native"
    on_gpu = replace(rows(), device="cuda")
    assert judge(*untimed, on_gpu, PLAIN).level == "native"


def test_emulated_by_speed_needs_the_whole_factor() -> None:
    for times, expected in ((1 / EMULATED - 0.01, "emulated"), (1 / EMULATED + 0.01, "native")):
        base, own = pair("conv2d", "bfloat16", times)
        assert level(own, base) == expected
    base, own = pair("mlp_step", "bfloat16", 0.1)  # casts and launches: shows nothing
    assert level(own, base) == "native"


def test_emulated_by_speed_needs_three_quarters_of_the_rounds() -> None:
    base = Fact("matmul", "bfloat16", seconds=(1.0,) * 4)
    slow = replace(base, seconds=(2.0, 2.0, 2.0, 2.0))
    mixed = replace(base, seconds=(2.0, 2.0, 1.0, 1.0))
    assert [level(fact, base) for fact in (slow, mixed)] == ["emulated", "native"]


def test_tf32_is_no_wrong_float32_on_an_accelerator() -> None:
    fact = Fact("conv2d", "float32", error=500.0, reduced=True)
    on_gpu = replace(rows(), device="cuda")
    assert judge(fact, fact, on_gpu, PLAIN).why.startswith("computed as TF32")
    assert level(fact, fact) == "wrong"
    assert judge(replace(fact, reduced=False), fact, on_gpu, PLAIN).level == "wrong"


# --- speed ----------------------------------------------------------------------------------


def test_speed_is_the_median_of_ratios_of_neighbours() -> None:
    found = speed([1.0, 10.0, 1.0, 1.0], [0.5, 5.0, 0.5, 1.0])
    assert found is not None
    assert (found.median, found.low, found.high) == (2.0, 1.75, 2.0)
    assert speed([1.0], [1.0]) is None
    assert speed([], []) is None


@given(st.lists(st.floats(1e-6, 10), min_size=2, max_size=20), st.floats(0.01, 100))
def test_speed_of_a_constant_factor_is_that_factor(base: list[float], factor: float) -> None:
    found = speed(base, [value / factor for value in base])
    assert found is not None
    assert found.low <= found.median * (1 + 1e-12)
    assert found.median == pytest.approx(factor)
    assert found.high == pytest.approx(factor)


# --- advice ---------------------------------------------------------------------------------


def advised(matmul: float, conv2d: float, **fields: object) -> tuple[str, str]:
    facts = (*pair("matmul", "bfloat16", matmul), *pair("conv2d", "bfloat16", conv2d))
    found = rows(*facts, **fields)
    return advice(found, ABLE), recommend(found, ABLE)


def test_advice_names_the_speeds() -> None:
    line, policy = advised(2.3, 1.7)
    assert line == "on this CPU bfloat16 pays: matmul 2.3x, convolution 1.7x"
    assert policy == "mixed_bfloat16"


@pytest.mark.parametrize(
    ("matmul", "conv2d", "word", "policy"),
    [
        (PAYS, 1.0, "pays: ", "mixed_bfloat16"),
        (PAYS - 0.01, 1.0, "does not pay: ", "float32"),
        (2.0, 1 / PAYS + 0.01, "pays: ", "mixed_bfloat16"),
        (2.0, 1 / PAYS - 0.01, "pays in part: ", "float32"),
        (0.2, 0.1, "does not pay: ", "float32"),
    ],
)
def test_what_pays_at_the_thresholds(matmul: float, conv2d: float, word: str, policy: str) -> None:
    line, named = advised(matmul, conv2d)
    assert f"bfloat16 {word}" in line
    assert named == policy


def test_the_fastest_dtype_is_recommended_unless_it_is_wrong() -> None:
    facts = (*pair("matmul", "bfloat16", 2.0), pair("matmul", "float16", 3.0)[1])
    assert recommend(rows(*facts), ABLE) == "mixed_float16"
    facts = (*facts[:2], replace(facts[2], error=9.0))
    assert recommend(rows(*facts), ABLE) == "mixed_bfloat16"
    assert "float16 pays: matmul 3x, and matmul is wrong" in advice(rows(*facts), ABLE)


def test_advice_without_speed_and_without_kernels() -> None:
    quick = rows(Fact("matmul", "float32"), Fact("matmul", "float16"))
    assert advice(quick, PLAIN) == "on this CPU float16 is emulated, speed not measured"
    assert recommend(quick, PLAIN) is None
    refused = Fact("matmul", "bfloat16", refused="no")
    timed = pair("matmul", "float16", 0.5)
    none = rows(refused, *timed, support={"bfloat16": ("simulated", "")})
    assert "bfloat16 is not there: mpcore simulates it" in advice(none, PLAIN)
    assert advice(rows(), PLAIN) == ""
    assert recommend(none, PLAIN) == "float32"


# --- findings -------------------------------------------------------------------------------


def found(*frameworks: Framework, requirements: object = None, **packages: str) -> list[str]:
    machine = replace(PLAIN, packages=packages)
    report = Report(machine, frameworks, requirements or {})  # type: ignore[arg-type]
    return [f"{f.kind} {f.where}: {f.text} -> {f.remedy}" for f in examine(report)]


MINDSPORE = Framework("mindspore", "ok")


@pytest.mark.parametrize(
    ("mindspore", "numpy", "problems"),
    [
        ("2.10.0", "2.0.0", 1),
        ("2.10.0", "2.4.6", 1),
        ("2.10.0", "1.26.4", 0),
        ("2.11.0", "2.4.6", 0),
    ],
)
def test_the_numpy_conflict(mindspore: str, numpy: str, problems: int) -> None:
    lines = found(MINDSPORE, mindspore=mindspore, numpy=numpy)
    assert len(lines) == problems
    assert all("numpy<2" in line and f"numpy {numpy}" in line for line in lines)


def test_a_conflict_of_a_framework_that_was_not_looked_at_is_left_out() -> None:
    assert found(Framework("torch", "ok"), mindspore="2.10.0", numpy="2.4.6") == []


def test_the_autocast_lstm_is_a_limit_of_the_cpu() -> None:
    lines = found(Framework("torch", "ok"), torch="2.13.0+cpu")
    assert all(line.startswith("limit torch: ") for line in lines)
    assert [" float16 autocast" in line for line in lines] == [True, False]
    assert [" bfloat16 autocast" in line for line in lines] == [False, True]
    report = Report(replace(ABLE, packages={"torch": "2.13.0"}), (Framework("torch", "ok"),))
    assert examine(report) == []
    unknown = replace(report.machine, flags=None)
    assert examine(replace(report, machine=unknown)) == []


def test_tiles_that_nobody_describes_are_a_limit_of_what_computes_with_onednn() -> None:
    frameworks = tuple(Framework(name, "ok") for name in ("torch", "tensorflow", "mindspore"))
    report = Report(replace(PLAIN, packages={}, tiles=False), frameworks, {})
    lines = [f"{f.kind} {f.where}: {f.text} -> {f.remedy}" for f in examine(report)]
    assert [line.partition(":")[0] for line in lines] == ["limit torch", "limit tensorflow"]
    assert all("SIGILL" in line and "export ONEDNN_MAX_CPU_ISA=" in line for line in lines)


def test_known_combinations_say_what_to_do_and_how_it_is_known() -> None:
    for bad in KNOWN_BAD:
        assert bad.kind in ("problem", "limit")
        assert all((bad.text, bad.remedy, bad.source, bad.packages))
        for spec in bad.packages.values():
            satisfies("1.0", spec)  # raises for what is no specifier


def test_older_than_mpcore_declares() -> None:
    bounds = {"torch": ">=2.13"}
    lines = found(Framework("torch", "ok"), requirements=bounds, torch="2.12.1")
    assert any(line.startswith("problem torch: torch 2.12.1") for line in lines)
    lines = found(Framework("torch", "ok"), requirements=bounds, torch="2.13.0+cpu")
    assert not any(line.startswith("problem") for line in lines)


def test_missing_is_a_problem_only_if_it_was_asked_for() -> None:
    missing = Framework("torch", "missing", "no module torch")
    assert found(missing) == []
    (line,) = found(replace(missing, asked=True))
    assert line.startswith("problem torch: not installed")
    assert 'pip install "mpcore[torch]"' in line


def test_broken_is_a_problem_with_its_error() -> None:
    (line,) = found(Framework("torch", "failed", "killed by SIGILL (at: lstm in float16)"))
    assert "problem torch: killed by SIGILL (at: lstm in float16)" in line


def test_keras_has_to_compute_with_tensorflow() -> None:
    keras = Framework("tensorflow", "ok", settings={"Keras backend": "jax", "tf.keras": "2.21.0"})
    assert len(found(keras)) == 2
    fine = {"Keras backend": "tensorflow", "tf.keras": "3.15.1"}
    assert found(replace(keras, settings=fine)) == []


def test_wrong_float32_is_a_problem_and_wrong_float16_a_limit() -> None:
    bad = Fact("lstm", "float32", error=5.0)
    assert [line.split()[0] for line in found(rows(bad))] == ["problem"]
    assert [line.split()[0] for line in found(rows(replace(bad, dtype="float16")))] == ["limit"]
    refused = Fact("conv2d", "float32", refused="no kernel")
    assert [line.split()[0] for line in found(rows(refused))] == ["problem"]


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_the_rule_that_keeps_an_operation_full_is_one(family: str) -> None:
    (line,) = found(rows(Fact(family, "float16", error=5.0)))
    if '"' in line:
        (rule,) = Policy.parse(line.split('"')[1]).rules
        assert rule.pattern in CATEGORIES
    else:
        assert line.endswith("leave float16 alone here")


def test_what_is_refused_in_16_bits_is_one_line() -> None:
    facts = [Fact(name, "bfloat16", refused="no kernel") for name in ("matmul", "lstm")]
    (line,) = found(rows(*facts))
    assert line.startswith("limit torch: bfloat16 is refused by matmul, lstm")


def test_much_slower_than_another_framework_here() -> None:
    fast = rows(Fact("conv2d", "float32", seconds=(1.0, 1.0)))
    for factor, count in ((SLOW, 1), (SLOW - 0.1, 0)):
        slow = Framework(
            "mindspore", "ok", facts=(Fact("conv2d", "float32", seconds=(factor,) * 2),)
        )
        assert len(found(fast, slow)) == count


def test_a_busy_machine_is_said_and_compared_with_nothing() -> None:
    fast = rows(Fact("conv2d", "float32", seconds=(1.0, 1.0)))
    slow = Framework("mindspore", "ok", facts=(Fact("conv2d", "float32", seconds=(99.0, 99.0)),))
    assert len(found(fast, replace(slow, load=BUSY - 0.01))) == 1
    (line,) = found(fast, replace(slow, load=BUSY))
    assert "others used up to 25% of the machine: the speeds of mindspore are rough" in line
    assert found(replace(MINDSPORE, load=1.0)) == []  # nothing was measured
    busy = rows(*pair("matmul", "bfloat16", 2.0), load=BUSY)
    assert advice(busy, ABLE).endswith("bfloat16 pays: matmul 2x (rough: the machine was busy)")
    assert recommend(busy, ABLE) is None


def test_problems_come_first_and_decide_the_exit_code() -> None:
    limit = Fact("lstm", "float16", error=5.0)
    broken = Framework("mindspore", "failed", "no")
    report = Report(PLAIN, (rows(limit), broken))
    assert [f.kind for f in examine(report)] == ["problem", "limit"]
    assert to_dict(report)["exit_code"] == 1
    assert to_dict(Report(PLAIN, (rows(limit),)))["exit_code"] == 0
    assert to_dict(Report(PLAIN, ()))["exit_code"] == 0


def test_the_dict_is_json_and_holds_the_verdicts() -> None:
    report = Report(ABLE, (rows(*pair("matmul", "bfloat16", 2.0)),))
    again = json.loads(json.dumps(to_dict(report)))
    fact = again["frameworks"][0]["facts"][1]
    assert (fact["level"], fact["speed"]["median"], len(fact["seconds"])) == ("native", 2.0, 4)
    assert again["frameworks"][0]["recommended"] == "mixed_bfloat16"
    assert table(report.frameworks[0], ABLE)["matmul"]["bfloat16"].level == "native"


# --- versions and CPUs ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "spec", "holds"),
    [
        ("2.0", ">=2", True),
        ("2", "==2.0.0", True),
        ("1.26.4", ">=2", False),
        ("2.13.0+cpu", ">=2.13,<2.14", True),
        ("2.13.0rc1", ">=2.13", True),
        ("2.9", "<2.10", True),
        ("2.10.0", "<=2.9", False),
        ("3", ">3", False),
        ("unknown", ">=1", False),
        ("unknown", "", True),
    ],
)
def test_satisfies(version: str, spec: str, holds: bool) -> None:
    assert satisfies(version, spec) is holds


def test_satisfies_refuses_what_it_cannot_read() -> None:
    with pytest.raises(ValueError, match="`spec` must be bounds"):
        satisfies("1.0", "~=1.0")


def test_requirements_are_those_of_the_extras() -> None:
    own = requirements()
    assert set(own) == {"torch", "tensorflow", "mindspore"}
    for spec in own.values():
        assert spec.startswith(">=")
        assert satisfies(spec.removeprefix(">="), spec)


def test_the_cpu_of_x86_and_of_arm() -> None:
    x86 = "model name\t: A CPU\nflags\t\t: fpu avx2 avx512_bf16 amx_tile\n\nmodel name\t: A CPU\n"
    assert read_cpu(x86) == ("A CPU", ("avx2", "avx512_bf16", "amx_tile"))
    arm = "processor\t: 0\nFeatures\t: fp asimd fphp asimdhp bf16 svebf16\n"
    assert read_cpu(arm) == ("", ("fphp", "asimdhp", "bf16", "svebf16"))
    assert read_cpu("") == ("", None)


def test_the_time_of_proc_stat() -> None:
    own = moment("cpu  100 5 100 700 100 0 0 0 7 7\ncpu0 1\n")
    second = os.sysconf("SC_CLK_TCK")
    assert (own.total, own.idle) == (1005 / second, 800 / second)
    assert moment("")[:2] == (0.0, 0.0)


def test_what_others_used() -> None:
    before = Moment(100.0, 50.0, 7.0)
    assert used_by_others(before, Moment(110.0, 52.0, 10.0)) == pytest.approx(0.5)
    assert used_by_others(before, Moment(110.0, 60.0, 7.1)) == 0.0  # clocks of unlike grain
    assert used_by_others(before, before) == 0.0
    assert used_by_others(Moment(0.0, 0.0, 1.0), Moment(0.0, 0.0, 2.0)) == 0.0


# --- right answers ----------------------------------------------------------------------------


def small(family: str) -> cases.Case:
    """Return a case cut to a few numbers, so that differences can be taken one by one."""
    rng = np.random.default_rng(1)
    shapes = {
        "matmul": {"a": (2, 3), "b": (3, 4), "g": (2, 4)},
        "conv2d": {"x": (2, 3, 4, 5), "w": (2, 3, 3, 3), "g": (2, 2, 4, 5)},
        "elementwise": {"x": (2, 3), "y": (2, 3), "g": (2, 3)},
        "norm": {"x": (3, 5), "weight": (5,), "bias": (5,), "g": (3, 5)},
        "softmax": {"x": (3, 5), "g": (3, 5)},
        "lstm": {"x": (4, 2, 3), "w_ih": (8, 3), "w_hh": (8, 2), "g": (4, 2, 2)},
        "lstm_long": {"x": (4, 2, 3), "w_ih": (8, 3), "w_hh": (8, 2), "g": (4, 2, 2)},
        "attention": dict.fromkeys(("q", "k", "v", "g"), (2, 3, 4)),
        "mlp_step": {"x": (3, 4), "w1": (5, 4), "w2": (2, 5), "t": (3, 2)},
    }[family]
    arrays = {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    data = cases.FAMILIES[family].data
    inputs = {name: a for name, a in arrays.items() if name not in data}
    return cases.Case(inputs, {name: arrays[name] for name in data})


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_gradients_are_those_of_the_outputs(family: str) -> None:
    case = small(family)
    want = cases.right(family, case)
    arrays = {n: a.astype("f8") for n, a in {**case.inputs, **case.data}.items()}

    def total() -> float:
        y = cases.FAMILIES[family].right(arrays)["y"]
        return float((y * arrays["g"]).sum() if "g" in arrays else y)

    for name in case.inputs:
        for place in np.ndindex(*arrays[name].shape):
            before = arrays[name][place]
            ends = []
            for move in (1e-5, -1e-5):
                arrays[name][place] = before + move
                ends.append(total())
            arrays[name][place] = before
            assert want[f"d_{name}"][place] == pytest.approx(
                (ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-7
            )


@pytest.mark.parametrize("family", cases.FAMILIES)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_cases_are_the_same_every_time_and_of_the_format(family: str, dtype: str) -> None:
    case, again = cases.make_case(family, dtype), cases.make_case(family, dtype)
    for name, values in case.inputs.items():
        assert np.array_equal(values, again.inputs[name])
        assert np.array_equal(values, cases.round_to(values, dtype))
        assert np.isfinite(values).all()
    larger = cases.make_case(family, dtype, 2)
    sizes = [sum(a.size for a in c.data.values()) for c in (case, larger)]
    assert sizes[1] == 2 * sizes[0]


def test_no_element_is_near_the_kink() -> None:
    case = cases.make_case("elementwise", "bfloat16")
    x, y = case.inputs["x"], case.inputs["y"]
    assert np.abs(x * y + x).min() >= 0.5


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_a_product_of_the_format_is_within_its_limit_and_of_a_coarser_one_beyond(
    dtype: str,
) -> None:
    case = cases.make_case("matmul", dtype)
    want = cases.right("matmul", case)["y"]
    got = cases.round_to((case.inputs["a"] @ case.inputs["b"]), dtype)
    assert cases.error(got, want) <= cases.limit("matmul", dtype)
    swapped = cases.error(got[::-1], want)
    assert swapped > cases.limit("matmul", dtype)
    if dtype == "float32":  # TF32 and float16 inside are seen
        coarse = cases.round_to(case.inputs["a"], "float16") @ case.inputs["b"]
        assert cases.error(coarse, want) > cases.limit("matmul", dtype)


def test_error_of_another_shape_or_of_what_is_not_finite_is_infinite() -> None:
    want = np.ones((2, 2))
    assert cases.error(np.ones(4), want) == float("inf")
    assert cases.error(np.array([[1.0, np.nan], [1, 1]]), want) == float("inf")
    assert cases.error(want * 1.5, want) == 0.5


def test_known_differences_that_show_are_limits_and_the_wrong_ones_come_first() -> None:
    shown = (
        Shown("biased_moving_variance", 0.2),
        Shown("bias_gradient_in_bfloat16", 0.94),
        Shown("place_of_adams_eps", 0.0),
        Shown("double_rounding_before_bias", error="ValueError: no"),
    )
    report = Report(ABLE, (Framework("tensorflow", "ok", differences=shown),))
    lines = [finding for finding in examine(report) if finding.where == "tensorflow"]
    assert [finding.kind for finding in lines] == ["limit"] * 3
    assert lines[0].text.startswith("bias gradient in bfloat16, wrong in tensorflow (0.94 off")
    assert "use_bias=False" in lines[0].remedy
    assert any("could not be shown here (ValueError: no)" in finding.text for finding in lines)
    assert not any("adams" in finding.text for finding in lines)
