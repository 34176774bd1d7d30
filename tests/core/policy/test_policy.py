"""Policies: words, contradictions, rules, and every way to write one down."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcore import LossScale, Policy, PolicyError, Rule
from mpcore.policy.policy import PRESETS

PATTERNS = st.from_regex(r"[a-z*?][a-z0-9_.*?]{0,12}", fullmatch=True)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    policy = PRESETS[draw(st.sampled_from(sorted(PRESETS)))]
    words = ["full", "float16", "float32"] + (["lower"] if policy.compute != "float32" else [])
    targets = ["path", "layer"] + (["op"] if policy.by == "op" else [])
    for _ in range(draw(st.integers(0, 4))):
        rule = Rule(draw(st.sampled_from(words)), draw(st.sampled_from(targets)), draw(PATTERNS))
        policy = dataclasses.replace(policy, rules=(*policy.rules, rule))
    if draw(st.booleans()):
        scale = draw(
            st.sampled_from([LossScale.none(), LossScale.static(8.0), LossScale(init_scale=4.0)])
        )
        policy = policy.with_loss_scale(scale)
    if draw(st.booleans()):
        policy = dataclasses.replace(policy, simulation="refuse")
    return policy


@given(policies())
def test_every_form_round_trips(policy: Policy) -> None:
    assert Policy.parse(str(policy)) == policy
    assert Policy.from_json(policy.to_json()) == policy
    assert Policy.from_toml(policy.to_toml()) == policy
    assert Policy.from_dict(policy.to_dict()) == policy
    assert len({policy, Policy.parse(str(policy))}) == 1


def test_named_policies_read_as_their_name() -> None:
    for name, policy in PRESETS.items():
        assert str(policy) == name
        assert Policy.named(name) is policy


def test_policy_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy.named("float32").compute = "float16"  # type: ignore[misc]


def test_changes_return_copies() -> None:
    base = Policy.named("mixed_float16")
    changed = base.full("*.head", layer="softmax").lower("head.proj")
    assert base.rules == ()
    assert [str(rule) for rule in changed.rules] == [
        "full path=*.head",
        "full layer=softmax",
        "lower path=head.proj",
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("float32", "none"), ("mixed_bfloat16", "none"), ("mixed_float16", "dynamic")],
)
def test_scale_is_chosen_by_the_range_of_the_format(name: str, kind: str) -> None:
    """P15: bfloat16 and float32 need no scaler and get none."""
    assert Policy.named(name).scaling.kind == kind


def _model(dtype, **fields):
    return Policy(param=dtype, compute=dtype, by="model", **fields)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Policy.named("mixed_fp16"), "did you mean 'mixed_float16'"),
        (lambda: Policy(compute="bf16"), "`compute` must be one of .* got 'bf16'"),
        (lambda: Policy(by="layers"), "did you mean 'layer'"),
        (lambda: Policy(param="float16"), "`param` must be 'float32' when by='layer'"),
        (
            lambda: Policy(param="float16", compute="bfloat16", by="model"),
            "`compute` must equal `param`",
        ),
        (lambda: Policy(master="copy"), "`master` must be 'none' when param='float32'"),
        (lambda: _model("float16", master="split"), "`master` 'split' needs param='bfloat16'"),
        (lambda: _model("float16", master="stochastic"), "needs param='bfloat16'"),
        (lambda: _model("float16", master="copy:away"), "must round to nearest when param='float1"),
        (lambda: _model("bfloat16", master="copy:up"), "'up'"),
        (lambda: _model("bfloat16", master="stochastic:-1"), "needs a seed of 0 to 4294967295"),
        (
            lambda: _model("bfloat16", optimizer_state="bfloat16"),
            "must be 'float32' without master",
        ),
        (lambda: Policy(op_list="portable"), "`op_list` must be 'native' unless by='op'"),
        (lambda: Policy(compute="float16", output="bfloat16"), "`output` must be"),
        (lambda: Policy(reduce="float16"), "`reduce` must be 'float32'"),
        (lambda: Policy().lower("*"), "must not lower layers when compute='float32'"),
        (lambda: Policy().full(), "needs a path pattern"),
        (lambda: Policy().full("a b"), "`rule.pattern` must be a name"),
        (lambda: Policy().full(layr="x"), "did you mean 'layer'"),
        (lambda: Policy(loss_scale="automatic"), "did you mean 'auto'"),
        (lambda: Policy.parse("mixed_float16; ful x"), "did you mean 'full'"),
        (lambda: Policy.parse("mixed_float16; full"), "must look like"),
        (lambda: Policy.parse("comput=float16"), "did you mean 'compute'"),
        (lambda: Policy.parse("float32, mixed"), "must be a name, then field=value"),
        (lambda: Policy.from_json("{"), "must be a JSON document"),
        (lambda: Policy.from_json("[]"), "must be a JSON object"),
        (lambda: Policy.from_toml("= 3"), "must be a TOML document"),
        (lambda: Policy.from_dict({"computee": "float16"}), "did you mean 'compute'"),
    ],
)
def test_mistakes_are_refused_with_the_way_out(make, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make()


def test_text_takes_aliases() -> None:
    assert Policy.parse("compute=bf16") == Policy.named("mixed_bfloat16")


@pytest.mark.parametrize(
    ("pattern", "path", "hit"),
    [
        ("head", "head", True),
        ("head", "encoder.head", False),
        ("*.head", "encoder.head", True),
        ("*.head", "encoder.head2", False),
        ("encoder.*", "encoder.0.fc", True),
        ("block?.fc", "block1.fc", True),
    ],
)
def test_patterns_match_whole_paths(pattern: str, path: str, hit: bool) -> None:
    """P31: a rule that names a layer does not reach others that contain its name."""
    assert Rule("full", "path", pattern).matches(path) is hit
