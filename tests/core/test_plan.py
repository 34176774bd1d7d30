"""Resolving a policy over a layer tree."""

from __future__ import annotations

import pytest

from mpcore import Layer, ParamInfo, Policy, PolicyError, resolve

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
    return {e.path: (e.param, e.compute, e.output) for e in resolve(policy, TREE).layers}


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
    plan = resolve(policy, TREE)
    assert plan["head"].compute == "float32"
    assert plan["enc.fc"].compute == "float16"
    assert plan["enc.fc"].rule == "rule: lower path=enc.*"


def test_rules_match_category_and_type() -> None:
    policy = Policy.named("mixed_float16").full(layer="Embedding").lower(layer="norm")
    plan = resolve(policy, TREE)
    assert plan["embed"].compute == "float32"
    assert plan["enc.norm"].compute == "float16"


def test_explicit_dtype() -> None:
    policy = Policy.named("mixed_float16").with_rules("bfloat16", "head")
    assert resolve(policy, TREE)["head"].compute == "bfloat16"


def test_unused_rules_are_listed() -> None:
    policy = Policy.named("mixed_float16").full("nothing", "head").full("enc.f?")
    assert resolve(policy, TREE).unused_rules == ("full path=nothing",)


def test_shadowed_rule_counts_as_unused() -> None:
    policy = Policy.named("mixed_float16").full("head").lower("head")
    assert resolve(policy, TREE).unused_rules == ("full path=head",)


def test_table_names_every_layer_and_reason() -> None:
    text = str(resolve(Policy.named("mixed_float16").full("head", "none"), TREE))
    for layer in TREE[1:]:
        assert layer.path in text
    assert "rule: full path=head" in text
    assert "unused rule: full path=none" in text
    assert "loss scale dynamic" in text


def test_plan_is_data() -> None:
    plan = resolve(Policy.named("mixed_float16"), TREE)
    assert plan.to_dict()["layers"][3]["compute"] == "float16"
    assert plan == resolve(Policy.parse("mixed_float16"), TREE)
    with pytest.raises(KeyError, match="no layer 'x'"):
        plan["x"]


def test_unknown_category_is_refused() -> None:
    with pytest.raises(PolicyError, match="did you mean 'linear'"):
        Layer("a", "linea", "Linear")
