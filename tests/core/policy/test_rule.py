"""The grammar of rules, their conditions, and what decides over what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcore import Layer, ParamInfo, Policy, PolicyError, Rule, resolve_plan

SMALL = (ParamInfo("weight", (4, 4), "float32"), ParamInfo("bias", (4,), "float32"))
LARGE = (ParamInfo("weight", (64, 64), "float32"),)
TREE = [
    Layer("", "container", "Net"),
    Layer("stem", "linear", "Linear", SMALL, op="linear"),
    Layer("body", "linear", "Linear", LARGE, op="linear"),
    Layer("bn", "norm", "BatchNorm1d", SMALL, op="batch_norm"),
    Layer("ln", "norm", "LayerNorm", SMALL, op="layer_norm"),
    Layer("user", "linear", "Linear", LARGE, op="linear", own="float32"),
]

RULES = st.builds(
    Rule,
    st.sampled_from(["full", "lower", "follow", "float32", "bfloat16"]),
    st.sampled_from(["path", "layer", "op"]),
    st.from_regex(r"[a-z*?][a-z0-9_.*?]{0,12}", fullmatch=True),
    st.sampled_from(["", "full", "lower", "follow", "float16"]),
    st.lists(
        st.sampled_from(["params<10", "params>=4096", "device=cpu", "device=n*"]), max_size=3
    ).map(tuple),
)


@given(RULES)
def test_text_round_trips(rule: Rule) -> None:
    assert Rule.parse(str(rule)) == rule


def plan(policy: Policy, device: str = "") -> dict[str, tuple[str, str]]:
    return {e.path: (e.compute, e.output) for e in resolve_plan(policy, TREE, device).layers}


def test_output_may_differ_from_compute() -> None:
    policy = Policy.parse("mixed_float16; lower>full layer=linear; full>lower layer=norm")
    found = plan(policy)
    assert found["stem"] == ("float16", "float32")
    assert found["bn"] == ("float32", "float16")


@pytest.mark.parametrize(
    ("condition", "full"),
    [
        ("params<20", []),
        ("params<=20", ["stem"]),
        ("params>20", ["body"]),
        ("params>=20", ["stem", "body"]),
        ("params>1 and params<21", ["stem"]),
        ("device=cpu", ["stem", "body"]),
        ("device=npu", []),
        ("device=c* and params<100", ["stem"]),
    ],
)
def test_conditions_on_size_and_device(condition: str, full: list[str]) -> None:
    policy = Policy.parse(f"mixed_float16; full layer=Linear when {condition}")
    found = plan(policy, "cpu:0")
    assert [path for path in ("stem", "body") if found[path][0] == "float32"] == full


def test_ops_name_layers_by_what_they_are() -> None:
    found = plan(Policy.parse("mixed_float16; lower op=layer_norm"))
    assert found["ln"] == ("float16", "float16")
    assert found["bn"] == ("float32", "float16")


def test_native_leaves_a_layer_to_the_framework() -> None:
    assert plan(Policy.parse("mixed_float16; native stem"))["stem"] == ("follow", "follow")
    assert plan(Policy.parse("autocast_float16; native stem"))["stem"] == ("op", "op")


def test_dtype_set_in_the_model_wins_over_defaults_and_loses_to_rules() -> None:
    policy = Policy.named("mixed_float16")
    assert plan(policy)["user"] == ("float32", "float32")
    assert resolve_plan(policy, TREE)["user"].rule == "set in the model: float32"
    assert plan(Policy.named("mindspore:O3"))["user"] == ("float32", "float32")
    assert plan(policy.lower("user"))["user"] == ("float16", "float16")


def test_rules_win_over_defaults() -> None:
    policy = Policy.named("keras:mixed_float16")
    assert plan(policy)["bn"] == ("float32", "float16")
    assert plan(policy.full("bn"))["bn"] == ("float32", "float32")
    assert resolve_plan(policy, TREE)["stem"].rule == "keras:mixed_float16: lower layer=*"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("full", "must look like"),
        ("", "must look like"),
        ("full a b", "must look like"),
        ("full a when", "must look like"),
        ("full a when params<3 or device=cpu", "join conditions with 'and'"),
        ("full a when params=3", "conditions like 'params<1024'"),
        ("full a when params<-3", "conditions like 'params<1024'"),
        ("full a when cpu", "conditions like 'params<1024'"),
        ("full> a", "must follow '>'"),
        ("full>lowr a", "did you mean 'lower'"),
        ("ful a", "did you mean 'full'"),
        ("full pth=a", "did you mean 'path'"),
        ("native>full a", "must be empty for 'native'"),
        ("full path=" + "a" * 201, "at most 200"),
        ("full path=a;b", "`rule.pattern` must be a name"),
        ("full path=", "`rule.pattern` must be a name"),
        ("full " + "x" * 2000, "must look like"),
    ],
)
def test_mistakes_are_refused_with_the_way_out(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Rule.parse(text)
