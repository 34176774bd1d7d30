"""Formats, names and rounding, against ml_dtypes and numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcore import PolicyError, parse_dtype
from mpcore.numerics.dtypes import FORMATS, round_to

REFERENCE = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_those_of_the_reference(name: str) -> None:
    info, ours = ml_dtypes.finfo((REFERENCE | {"float64": np.float64})[name]), FORMATS[name]
    assert (ours.name, ours.bits) == (name, info.bits)
    assert ours.max == float(info.max)
    assert ours.smallest_normal == float(info.smallest_normal)
    assert ours.smallest_subnormal == float(info.smallest_subnormal)
    assert ours.spacing == float(info.eps)


@given(st.lists(st.floats(width=32), max_size=50), st.sampled_from(sorted(REFERENCE)))
def test_rounding_equals_a_cast(values: list[float], name: str) -> None:
    x = np.array(values, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(REFERENCE[name]).astype(np.float32)
    np.testing.assert_array_equal(round_to(x, name), expected)
    np.testing.assert_array_equal(round_to(round_to(x, name), name), expected)


def test_rounding_of_all_bfloat16_neighbourhoods() -> None:
    """Every exponent, each with the patterns around a tie, both signs."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = (np.arange(0, 2**16, dtype=np.uint32)[:, None] << 16 | low).ravel()
    x = bits.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(round_to(x, "bfloat16"), expected)


def test_rounding_leaves_its_input_alone() -> None:
    x = np.array([1.001], np.float32)
    for name in REFERENCE:
        round_to(x, name)[...] = 0
    assert x[0] == np.float32(1.001)


@pytest.mark.parametrize(
    ("given_name", "name"),
    [("bf16", "bfloat16"), ("half", "float16"), ("torch.float16", "float16"), ("FP32", "float32")],
)
def test_names_and_aliases(given_name: str, name: str) -> None:
    assert parse_dtype(given_name) == name


def test_numpy_types_are_read() -> None:
    assert parse_dtype(np.float16) == "float16"
    assert parse_dtype(np.dtype("float32")) == "float32"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(PolicyError, match=r"`dtype` must be one of .* got 'float8'"):
        parse_dtype("float8")
    with pytest.raises(PolicyError, match="must be one of"):
        round_to(1.0, "float8")
