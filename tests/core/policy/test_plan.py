"""Resolving a policy over a layer tree."""

from __future__ import annotations

import pytest

from mpcore import Layer, ParamInfo, Policy, PolicyError, resolve_plan

W = (ParamInfo("weight", (4, 4), "float32"),)
TREE = [
    Layer("", "container", "Net"),
    Layer("embed", "embedding", "Embedding", W),
    Layer("enc", "container", "Block"),
    Layer("enc.fc", "linear", "Linear", W),
    Layer("enc.norm", "norm", "LayerNorm", W),
    Layer("enc.act", "activation", "GELU"),
    Layer("enc.soft", "softmax", "Softmax"),
    Layer("enc.custom", "other", "MyLayer", W),
    Layer("enc.plain", "other", "MyFunction"),
    Layer("head", "linear", "Linear", W),
]


def dtypes(policy: Policy) -> dict[str, tuple[str, str, str]]:
    return {e.path: (e.param, e.compute, e.output) for e in resolve_plan(policy, TREE).layers}


def test_mixed_policy_lowers_products_and_keeps_norms_and_softmax_full() -> None:
    low = ("float32", "bfloat16", "bfloat16")
    assert dtypes(Policy.named("mixed_bfloat16")) == {
        "": ("", "follow", "float32"),
        "embed": low,
        "enc": ("", "follow", "follow"),
        "enc.fc": low,
        "enc.norm": ("float32", "float32", "bfloat16"),
        "enc.act": ("", "follow", "follow"),
        "enc.soft": ("", "float32", "float32"),
        "enc.custom": ("float32", "float32", "float32"),
        "enc.plain": ("", "follow", "follow"),
        "head": low,
    }


def test_model_policy_stores_what_it_lowers() -> None:
    found = dtypes(Policy.named("model_bfloat16").full("head"))
    assert found["enc.fc"][0] == "bfloat16"
    assert found["enc.norm"][0] == found["head"][0] == "float32"


def test_op_policy_leaves_layers_to_the_list() -> None:
    found = dtypes(Policy.named("autocast_bfloat16").full("head"))
    assert found["enc.fc"] == ("float32", "op", "op")
    assert found["head"] == ("float32", "float32", "float32")


def test_last_matching_rule_decides() -> None:
    policy = Policy.named("mixed_float16").full(layer="linear").lower("enc.*")
    plan = resolve_plan(policy, TREE)
    assert plan["head"].compute == "float32"
    assert plan["enc.fc"].compute == "float16"
    assert plan["enc.fc"].rule == "rule: lower path=enc.*"


def test_rules_match_category_and_type() -> None:
    policy = Policy.named("mixed_float16").full(layer="Embedding").lower(layer="norm")
    plan = resolve_plan(policy, TREE)
    assert plan["embed"].compute == "float32"
    assert plan["enc.norm"].compute == "float16"


def test_explicit_dtype() -> None:
    policy = Policy.named("mixed_float16").with_rules("bfloat16", "head")
    assert resolve_plan(policy, TREE)["head"].compute == "bfloat16"


def test_unused_rules_are_listed() -> None:
    policy = Policy.named("mixed_float16").full("nothing", "head").full("enc.f?")
    assert resolve_plan(policy, TREE).unused_rules == ("full path=nothing",)


def test_shadowed_rule_counts_as_unused() -> None:
    policy = Policy.named("mixed_float16").full("head").lower("head")
    assert resolve_plan(policy, TREE).unused_rules == ("full path=head",)


def test_table_names_every_layer_and_reason() -> None:
    text = str(resolve_plan(Policy.named("mixed_float16").full("head", "none"), TREE))
    for layer in TREE[1:]:
        assert layer.path in text
    assert "rule: full path=head" in text
    assert "unused rule: full path=none" in text
    assert "loss scale dynamic" in text


def test_plan_is_data() -> None:
    plan = resolve_plan(Policy.named("mixed_float16"), TREE)
    assert plan.to_dict()["layers"][3]["compute"] == "float16"
    assert plan == resolve_plan(Policy.parse("mixed_float16"), TREE)
    with pytest.raises(KeyError, match="no layer 'x'"):
        plan["x"]


def test_unknown_category_is_refused() -> None:
    with pytest.raises(PolicyError, match="did you mean 'linear'"):
        Layer("a", "linea", "Linear")


OPS = [
    Layer("fc", "linear", "Linear", op="linear"),
    Layer("bn", "norm", "BatchNorm1d", op="batch_norm"),
    Layer("softmax", "softmax", "Softmax", op="softmax"),
    Layer("own", "other", "Own"),
]


def test_portable_list_gives_layers_their_dtypes() -> None:
    plan = resolve_plan(Policy.named("portable_bfloat16"), OPS, "cpu")
    assert [(e.compute, e.listed) for e in plan.layers] == [
        ("bfloat16", True),
        ("follow", True),
        ("float32", True),
        ("op", False),
    ]
    assert plan["softmax"].rule == "portable op list: softmax full"
    found = {entry.op: str(entry) for entry in plan.ops}
    assert (found["matmul"], found["softmax"], found["dot"]) == ("bfloat16", "float32", "promote")
    assert "metric" not in found


@pytest.mark.parametrize(
    ("rules", "op", "expected"),
    [
        ("full op=softmax", "softmax", "float32"),
        ("full op=softmax; lower op=soft*", "softmax", "bfloat16"),
        ("float16 op=loss", "mse_loss", "float16"),
        ("full>lower op=layer_norm", "layer_norm", "float32>bfloat16"),
        ("native op=softmax", "softmax", "op"),
        ("full op=softmax when device=cpu", "softmax", "float32"),
        ("full op=softmax when device=npu", "softmax", None),
        ("full op=linear", "matmul", None),
    ],
)
def test_rules_decide_for_ops(rules: str, op: str, expected: str | None) -> None:
    plan = resolve_plan(Policy.parse(f"autocast_bfloat16; {rules}"), [], "CPU:0")
    found = {entry.op: str(entry) for entry in plan.ops}
    assert found.get(op) == expected


def test_rules_for_ops_stand_over_the_portable_list() -> None:
    plan = resolve_plan(Policy.parse("portable_bfloat16; lower op=softmax"), OPS)
    found = {entry.op: (str(entry), entry.by_rule) for entry in plan.ops}
    assert (found["softmax"], found["exp"]) == (("bfloat16", True), ("float32", False))
    assert (plan["softmax"].compute, plan["softmax"].listed) == ("bfloat16", False)
    assert plan.to_dict()["ops"][0]["op"] == "matmul"


def test_op_rules_that_decide_nothing_are_unused() -> None:
    text = "autocast_bfloat16; full op=gelu; lower op=gelu; full op=exp when device=npu"
    plan = resolve_plan(Policy.parse(text), [], "cpu")
    assert plan.unused_rules == ("full op=gelu", "full op=exp when device=npu")
    assert "it decided for no layer and no op" in str(plan)
    assert "bfloat16, by rule: lower op=gelu: gelu" in str(plan)


def test_ops_are_not_spoken_of_where_none_are_cast() -> None:
    assert resolve_plan(Policy.named("mixed_bfloat16"), OPS).ops == ()
    assert resolve_plan(Policy.named("autocast_bfloat16"), OPS).ops == ()
    assert resolve_plan(Policy.parse("float32, by=op; full op=exp"), OPS).ops == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("autocast_bfloat16; full op=sofmax", "`op` must match .*did you mean 'softmax'"),
        ("mixed_float16; full op=batchnorm", "did you mean 'batch_norm'"),
        ("autocast_bfloat16; full op=exp when params<9", "use layer= or path="),
    ],
)
def test_op_rules_that_mean_nothing_are_refused(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        resolve_plan(Policy.parse(text), OPS)
