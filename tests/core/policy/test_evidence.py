"""What a layer computes decides its category; what nobody knows is told."""

from __future__ import annotations

import pytest

import mpcore as mp
from mpcore import Layer, ParamInfo, Policy, PolicyError, resolve_plan
from mpcore.policy.coverage import coverage
from mpcore.policy.evidence import (
    Evidence,
    Judged,
    Judgement,
    Operation,
    as_one_layer,
    evidence_of,
    judge,
)
from mpcore.policy.registry import registered


def seen(*names: str, weighs: str = "", full: str = "") -> Judgement:
    weighing, kept = weighs.split(), full.split()
    return judge(Evidence(tuple(Operation(n, n in weighing, n in kept) for n in names)))


@pytest.mark.parametrize(
    ("names", "weighs", "category"),
    [
        (("linear",), "linear", "linear"),
        (("matmul", "add_sub", "gelu", "matmul"), "matmul", "linear"),
        (("bmm", "silu", "mul_div", "bmm", "sum"), "bmm", "linear"),
        (("conv2d", "add_sub"), "conv2d", "conv"),
        (("conv_transpose",), "conv_transpose", "conv_transpose"),
        (("lstm_cell",), "lstm_cell", "recurrent"),
        (("linear", "bmm", "softmax", "bmm", "linear"), "linear", "attention"),
        (("linear", "attention", "linear"), "linear", "attention"),
        (("bmm", "mul_div"), "mul_div", "attention"),
        (("matmul", "softmax", "topk"), "matmul", "softmax"),
        (("pow", "mean", "add_sub", "rsqrt", "mul_div"), "mul_div", "norm"),
        (("mean", "add_sub", "var_std", "sqrt", "mul_div"), "mul_div", "norm"),
        (("layer_norm", "mul_div"), "layer_norm", "norm"),
        (("norm", "mul_div"), "mul_div", "norm"),
        (("gather",), "gather", "embedding"),
        (("embedding", "mul_div"), "embedding", "embedding"),
        (("mul_div",), "mul_div", "other"),
        (("exp", "mul_div"), "exp", "other"),
        (("gather", "mul_div"), "mul_div", "other"),
    ],
)
def test_category_by_operations(names, weighs, category):
    found = seen(*names, weighs=weighs)
    assert found.category == category
    assert found.unknown == ""


def test_products_beside_what_wants_float32_are_not_decided():
    found = seen("linear", "pow", "mean", "rsqrt", "mul_div", weighs="linear")
    assert found.category == "other"
    assert found.unknown == "it computes linear beside pow, rsqrt, which want float32"


def test_what_its_own_code_widens_is_no_obstacle():
    assert seen("linear", "pow", weighs="linear", full="pow").category == "linear"


def test_products_in_float32_by_the_layers_own_code_are_meant():
    found = seen("linear", "sigmoid", weighs="linear", full="linear sigmoid")
    assert (found.category, found.unknown) == ("other", "")


def test_nothing_seen_is_not_known():
    assert judge(Evidence()).unknown
    assert judge(Evidence(why="it hides")) == Judgement("other", "", "it hides")


def test_names_outside_of_the_table_decide_nothing():
    assert seen("", "of_some_backend").category == "other"
    assert seen("linear", "", weighs="linear").category == "linear"


# --- what is told -----------------------------------------------------------------------------


def _layer(path: str, size: int, category: str = "other", **fields) -> Layer:
    params = (ParamInfo("weight", (size,), "float32"),)
    return Layer(path, category, path.title(), params, **fields)


def _covered(policy: str, *layers: Layer):
    return coverage(resolve_plan(Policy.parse(policy), layers), layers)


def test_share_names_the_largest_first():
    layers = (_layer("a", 1, unknown="x"), _layer("b", 3, unknown="y"), _layer("c", 6, "linear"))
    found = _covered("mixed_bfloat16", *layers)
    assert found.share == pytest.approx(0.4)
    assert found.types == (("B", "y"), ("A", "x"))
    text = str(found)
    assert "\n" not in text
    assert text.startswith("40.0 % of the parameter bytes stay float32")
    assert 'mp.register_layer(B, "linear")' in text


@pytest.mark.parametrize(
    "policy",
    [
        "float32",
        "autocast_bfloat16",
        "portable_bfloat16",
        "mixed_bfloat16; full a",
        "mixed_bfloat16; lower layer=A",
        "mixed_bfloat16; lower *",
        "mindspore:O2",
    ],
)
def test_nothing_is_told_where_nothing_is_lost_or_somebody_decided(policy):
    assert _covered(policy, _layer("a", 4, unknown="x")).types == ()


def test_norms_and_known_layers_are_no_loss():
    layers = (_layer("a", 4, "norm"), _layer("b", 4, computes="mul_div"), _layer("c", 4, "softmax"))
    assert _covered("mixed_bfloat16", *layers).share == 0.0


def test_by_model_counts_too():
    assert _covered("model_bfloat16", _layer("a", 4, unknown="x")).share == 1.0


def test_container_with_unknown_parameters_is_told():
    assert _covered("mixed_bfloat16", _layer("a", 4, "container", unknown="x")).share == 1.0


def test_plan_says_why():
    layers = [_layer("a", 4, unknown="why not"), _layer("b", 4, "linear", computes="matmul")]
    plan = resolve_plan(Policy.named("mixed_bfloat16"), layers)
    assert plan["a"].rule == "other: full (not known: why not)"
    assert plan["b"].rule == "linear: lower (computes matmul)"


# --- parameters that are held -----------------------------------------------------------------


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "autocast_bfloat16"])
def test_rule_about_held_parameters_is_unused(policy):
    rules = Policy.parse(f"{policy}; full held*")
    plan = resolve_plan(rules, [_layer("held", 4, "parameters")])
    assert plan.unused_rules == ("full path=held*",)
    assert (plan["held"].compute, plan["held"].param) == ("follow", "float32")


def test_rule_about_held_parameters_counts_by_model():
    layers = [_layer("held", 4, "parameters")]
    assert resolve_plan(Policy.named("model_bfloat16"), layers)["held"].param == "bfloat16"
    kept = resolve_plan(Policy.parse("model_bfloat16; full held"), layers)
    assert kept["held"].param == "float32"
    assert kept.unused_rules == ()


# --- what somebody says -----------------------------------------------------------------------


class Experts:
    pass


class Fewer(Experts):
    pass


@pytest.fixture
def forgotten():
    yield
    for cls in (Experts, Fewer):
        mp.register_layer(cls, None)


@pytest.mark.usefixtures("forgotten")
def test_the_nearest_registered_class_counts():
    assert registered(Fewer) == ""
    mp.register_layer(Experts, "linear")
    assert registered(Fewer) == "linear"
    mp.register_layer(Fewer, "norm")
    assert (registered(Experts), registered(Fewer)) == ("linear", "norm")
    mp.register_layer(Fewer, None)
    assert registered(Fewer) == "linear"


@pytest.mark.parametrize(
    ("cls", "category", "message"),
    [
        (Experts(), "linear", "`type` must be the class of a layer"),
        ("Experts", "linear", "`type` must be the class of a layer"),
        (Experts, "Linear", "`category` must be one of .* did you mean 'linear'"),
        (Experts, "", "`category` must be one of"),
        (Experts, 3, "`category` must be one of"),
    ],
)
@pytest.mark.usefixtures("forgotten")
def test_what_is_no_class_or_category_is_refused(cls, category, message):
    with pytest.raises(PolicyError, match=message):
        mp.register_layer(cls, category)
    assert registered(Experts) == ""


def test_a_product_of_two_dtypes_is_no_evidence_unless_its_own_code_casts():
    heard = [("linear", True, {16, 32}), ("add_sub", False, {16})]
    assert evidence_of(heard, 32).why == "in 16 bits its linear would get two dtypes"
    assert evidence_of(heard, 32, widens=True).operations == (
        Operation("linear", weighs=True, full=True),
        Operation("add_sub"),
    )
    assert evidence_of([("add_sub", True, {16, 32})], 32).operations[0].full


def test_a_container_is_one_layer_only_if_its_call_makes_it_one():
    assert as_one_layer(Judgement("linear"), ("linear",), ()).category == "linear"
    assert as_one_layer(Judgement("norm"), ("linear",), ()) == Judgement("container")
    hidden = Judgement("other", unknown="it hides")
    assert as_one_layer(hidden, ("linear",), [(3, 4)]) == Judgement("container", unknown="it hides")
    assert as_one_layer(hidden, ("linear",), [(4,), (1, 4)]) == Judgement("container")


def test_equal_layers_are_called_once():
    calls = []

    def evidence():
        calls.append(1)
        return Evidence((Operation("linear", weighs=True),))

    known = Judged()
    found = [known.of(cls, key, evidence).category for cls, key in [(int, 1), (int, 1), (str, 1)]]
    assert found == ["linear"] * 3
    assert len(calls) == 2
