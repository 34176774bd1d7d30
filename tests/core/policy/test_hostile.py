"""Text and data from anywhere: refused by name or read, never run, never slow."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcore import Policy, PolicyError

_TEXT = (
    "full lower path=* layer=norm when params<3 and ; , = > ( ) mixed_float16 compute float16 "
    "loss_scale dynamic init_scale 1e400 nan default apex:O2 O1 by op model master copy -1 True"
)
WORDS = st.sampled_from(_TEXT.split())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = sorted(Policy.__dataclass_fields__)


def refused_or(make) -> Policy | None:
    """Return the policy, or None after an error that names what is wrong."""
    try:
        return make()
    except PolicyError as exc:
        if "`" in str(exc):
            return None
        raise


@settings(max_examples=400)
@given(st.lists(WORDS | st.text(max_size=6), max_size=12))
def test_any_text_is_a_policy_or_refused(words: list[str]) -> None:
    for text in (" ".join(words), "".join(words)):
        policy = refused_or(lambda text=text: Policy.parse(text))
        assert policy is None or Policy.parse(str(policy)) == policy


@settings(max_examples=400)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
def test_any_data_is_a_policy_or_refused(data: dict[str, object]) -> None:
    policy = refused_or(lambda: Policy.from_dict(data))
    assert policy is None or Policy.from_dict(policy.to_dict()) == policy


@settings(max_examples=200)
@given(st.dictionaries(st.text(max_size=12), VALUES, max_size=4))
def test_any_loss_scale_is_one_or_refused(data: dict[str, object]) -> None:
    policy = refused_or(lambda: Policy.from_dict({"compute": "float16", "loss_scale": data}))
    assert policy is None or Policy.from_dict(policy.to_dict()) == policy


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 15_000, id="deep-list"),
        pytest.param('{"a":' * 3_000, id="deep-object"),
        pytest.param("x" * 10_000_000, id="ten-megabytes"),
        pytest.param('{"rules": [' + ",".join(['"full a"'] * 1500) + "]}", id="many-rules"),
        pytest.param("," * 19_000, id="commas"),
        pytest.param("(" * 19_000, id="brackets"),
        pytest.param(";".join(["full a"] * 2000), id="many-segments"),
        pytest.param("full " + "*a" * 9_000, id="stars"),
        pytest.param("a = " + "[" * 5_000, id="deep-toml"),
        pytest.param("__import__('os').system('true')", id="code"),
        pytest.param("!!python/object/apply:os.system ['true']", id="yaml-tag"),
        pytest.param("\x00\ud800\n", id="no-text"),
    ],
)
@pytest.mark.parametrize("read", [Policy.parse, Policy.from_json, Policy.from_toml])
def test_hostile_text_is_refused_quickly(read, text: str) -> None:
    began = time.process_time()
    with pytest.raises(PolicyError):
        read(text)
    # A bound on hanging, no measure of speed: each takes milliseconds.
    assert time.process_time() - began < 10


def test_pattern_with_many_stars_matches_in_no_time() -> None:
    policy = Policy.named("mixed_float16").full("*a" * 90 + "b")
    began = time.process_time()
    assert not policy.rules[0].matches("a" * 5000)
    assert time.process_time() - began < 10


def test_values_of_the_wrong_kind_are_named() -> None:
    for data, message in (
        ({"rules": 5}, "`rules` must be a list"),
        ({"rules": [5]}, "`rule` must look like"),
        ({"loss_scale": 5}, "`loss_scale` must be 'auto' or a table"),
        ({"loss_scale": [1]}, "`loss_scale` must be 'auto' or a table"),
        ({"compute": ["float16"]}, "`compute` must be one of"),
        ({"name": 5}, "`name` must be a text"),
        ({"compute": "float16", "loss_scale": {"init_scale": "x"}}, "must be a float number"),
        ({"compute": "float16", "loss_scale": {"init_scale": float("nan")}}, "init_scale"),
    ):
        with pytest.raises(PolicyError, match=message):
            Policy.from_dict(data)
        if "nan" not in json.dumps(data).lower():
            with pytest.raises(PolicyError, match=message):
                Policy.from_json(json.dumps(data))
