"""The levels of other frameworks, as policies."""

from __future__ import annotations

import pytest

from mpcore import Layer, ParamInfo, Policy, PolicyError, resolve_plan
from mpcore.policy.policy import PRESETS
from mpcore.policy.words import AMBIGUOUS

W = (ParamInfo("weight", (8, 8), "float32"),)
TREE = [
    Layer("", "container", "Net"),
    Layer("fc", "linear", "Linear", W, op="linear"),
    Layer("bn", "norm", "BatchNorm2d", W, op="batch_norm"),
    Layer("ln", "norm", "LayerNorm", W, op="layer_norm"),
    Layer("gn", "norm", "GroupNorm", W, op="group_norm"),
    Layer("soft", "softmax", "Softmax", op="softmax"),
    Layer("relu", "activation", "ReLU", op="relu"),
]
F, H, OP, FOLLOW = "float32", "float16", "op", "follow"

# What each layer stores, computes in and hands on; from the libraries' own tables.
ROWS = {
    "apex:O0": {"fc": (F, F, F), "bn": (F, F, F), "soft": ("", F, F)},
    "apex:O2": {
        "fc": (H, H, H),
        "bn": (F, F, H),
        "ln": (H, H, H),
        "gn": (H, H, H),
        "soft": ("", FOLLOW, FOLLOW),
    },
    "apex:O3": {"fc": (H, H, H), "bn": (H, H, H), "ln": (H, H, H)},
    "mindspore:O1": {
        "fc": (F, H, F),
        "bn": (F, F, F),
        "soft": ("", F, F),
        "relu": ("", H, F),
    },
    "mindspore:O2": {
        "fc": (F, H, H),
        "bn": (F, F, H),
        "ln": (F, F, H),
        "gn": (F, H, H),
        "soft": ("", H, H),
    },
    "mindspore:O3": {"fc": (F, H, H), "bn": (F, H, H), "soft": ("", H, H)},
    "mindspore:auto": {"fc": (F, OP, OP), "bn": (F, OP, OP)},
    "paddle:O2": {"fc": (H, H, H), "bn": (F, F, H), "ln": (F, F, H), "gn": (H, H, H)},
    "paddle:OD": {"fc": (F, H, H), "ln": (F, F, F), "soft": ("", F, F)},
    "keras:mixed_float16": {"fc": (F, H, H), "ln": (F, F, H), "soft": ("", H, H)},
    "keras:float16": {"fc": (H, H, H), "ln": (H, H, H), "soft": ("", H, H)},
    "torch:autocast": {"fc": (F, OP, OP)},
    "torch:half": {"fc": (H, H, H), "bn": (H, H, H), "soft": ("", FOLLOW, FOLLOW)},
}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_level_lowers_and_protects_what_its_framework_does(name: str) -> None:
    plan = resolve_plan(Policy.named(name), TREE)
    found = {path: (plan[path].param, plan[path].compute, plan[path].output) for path in ROWS[name]}
    assert found == ROWS[name]


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("apex:O0", "none"),
        ("apex:O1", "apex"),
        ("apex:O2", "apex"),
        ("apex:O3", "none"),
        ("mindspore:O1", "none"),
        ("mindspore:O2", "mindspore_update_cell(init_scale=16777216.0)"),
        ("mindspore:O3", "none"),
        ("mindspore:auto", "none"),
        ("keras:mixed_float16", "keras"),
        ("keras:mixed_bfloat16", "none"),
        ("keras:float16", "none"),
        ("torch:autocast", "torch"),
        ("paddle:O1", "paddle"),
    ],
)
def test_level_scales_the_loss_as_its_framework_does(name: str, scale: str) -> None:
    assert str(Policy.named(name).scaling) == scale


@pytest.mark.parametrize("letter", AMBIGUOUS)
@pytest.mark.parametrize("read", [Policy.named, Policy.parse])
def test_letter_without_a_framework_is_refused_with_the_choices(read, letter: str) -> None:
    with pytest.raises(PolicyError, match="means another thing in each framework") as caught:
        read(letter)
    choices = {name for name in PRESETS if name.endswith(f":{letter}")} | {*AMBIGUOUS[letter]}
    assert choices <= set(PRESETS)
    assert all(repr(name) in str(caught.value) for name in choices)


def test_every_level_is_ambiguous_without_its_framework() -> None:
    """A level is what is neither a policy's name nor a word of its own."""
    levels = {name.partition(":")[2] for name in PRESETS if ":" in name}
    assert {level for level in levels if level[:1] == "O" or level == "auto"} <= set(AMBIGUOUS)


def test_masters_exist_where_the_framework_keeps_them() -> None:
    masters = {name for name, policy in PRESETS.items() if policy.master == "copy"}
    assert masters == {"model_float16", "model_bfloat16", "apex:O2", "paddle:O2"}


def test_levels_round_trip_with_changes() -> None:
    for name in PRESETS:
        policy = Policy.named(name).full("*.head")
        assert Policy.parse(str(policy)) == policy
        assert Policy.from_toml(policy.to_toml()) == policy


def test_changed_defaults_are_written_out() -> None:
    policy = Policy.parse(
        "mixed_float16; default lower layer=*; default full op=batch_norm; full a"
    )
    assert [str(rule) for rule in policy.defaults] == ["lower layer=*", "full op=batch_norm"]
    assert Policy.parse(str(policy)) == policy
