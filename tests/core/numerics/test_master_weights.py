"""The arithmetic of master weights: exact, and the same bits as independent formulas."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcore import MasterWeights, PolicyError
from mpcore.numerics.master_weights import (
    compensate,
    join,
    noise,
    restore,
    restore_for_saving,
    round_bits,
    round_stochastic,
    split,
    widen,
)

ROUNDINGS = ("nearest", "away", "truncate")


def patterns() -> np.ndarray:
    """Return every exponent and sign with the low halves that matter, ties of both parities
    among them, and a million random ones; tests/benchmarks/split_exhaustive.py tries all 2^32."""
    high = np.arange(2**16, dtype=np.uint32) << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    edges = (high[:, None] | low).reshape(-1)
    some = np.random.default_rng(0).integers(0, 2**32, 10**6, dtype=np.uint32)
    return np.concatenate([edges, some])


BITS = patterns()
VALUES = BITS.view(np.float32)
NAN = np.isnan(VALUES)
CANONICAL = np.where(NAN, np.uint32(0x7FC00000), BITS)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_join_returns_every_bit(rounding: str) -> None:
    high, rest, ties = split(VALUES, rounding)
    assert (high.dtype, rest.itemsize) == (np.uint16, 2)
    np.testing.assert_array_equal(join(high, rest, rounding, ties).view(np.uint32), CANONICAL)
    np.testing.assert_array_equal(high, round_bits(VALUES, rounding))


def test_roundings_are_what_other_formulas_give() -> None:
    finite = VALUES[~NAN]
    bits = BITS[~NAN].astype(np.int64)
    with np.errstate(over="ignore"):
        cast = finite.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(round_bits(finite, "nearest"), cast)
    np.testing.assert_array_equal(round_bits(finite, "away"), (bits >> 16) + (bits >> 15 & 1))
    np.testing.assert_array_equal(round_bits(finite, "truncate"), bits >> 16)
    for rounding in ROUNDINGS:
        assert set(round_bits(VALUES[NAN], rounding)) == {0x7FC0}


def test_only_ties_that_went_down_are_listed() -> None:
    high, rest, ties = split(VALUES, "nearest")
    down = (rest == -32768) & (high == (CANONICAL >> 16))
    np.testing.assert_array_equal(ties, np.flatnonzero(down))
    assert len(ties) > 2**15 / 2  # every second pattern of the table has one


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_top_of_the_range_reads_infinity_and_is_kept(rounding: str) -> None:
    top = np.float32([3.4028235e38, -3.4028235e38, np.inf])
    high, rest, ties = split(top, rounding)
    reads = [np.inf, -np.inf, np.inf]
    if rounding == "truncate":
        reads[:2] = [np.float32(3.3895314e38), np.float32(-3.3895314e38)]
    np.testing.assert_array_equal(widen(high), np.float32(reads))
    np.testing.assert_array_equal(join(high, rest, rounding, ties), top)


@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_shapes_are_kept_and_inputs_left_alone(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).normal(size=shape).astype("f4")
    before = values.copy()
    high, rest, ties = split(values, "nearest")
    assert high.shape == rest.shape == join(high, rest, "nearest", ties).shape == shape
    assert round_stochastic(values, noise(0, 0, 0, values.size)).shape == shape
    np.testing.assert_array_equal(values, before)


def test_compensated_values_are_within_2_to_the_minus_17() -> None:
    value = VALUES[np.isfinite(VALUES)]
    value = value[np.isfinite(widen(round_bits(value)))].astype(np.float64)
    error = np.abs(restore(*compensate(value)).astype(np.float64) - value)
    assert (error <= np.maximum(np.abs(value) * 2.0**-17, 2.0**-134)).all()
    high, rest = compensate(np.float32([np.inf, np.nan, 3.4e38, -0.0]))
    np.testing.assert_array_equal(widen(high), [np.inf, np.nan, np.inf, 0.0])
    assert rest.tolist() == [0, 0, 0, 0]


def test_compensated_values_that_were_saved_give_the_same_parts_again() -> None:
    high, rest = compensate(VALUES[~NAN])
    saved = restore_for_saving(high, rest)
    again = compensate(saved)
    np.testing.assert_array_equal(again[0], high)
    # of zeros the sign is lost: nothing is missing there
    np.testing.assert_array_equal(widen(again[1]), widen(rest))
    total = restore(high, rest)
    moved = (saved != total)[-(10**5) :]  # of the random patterns
    assert 0 < moved.mean() < 0.01
    np.testing.assert_allclose(saved, total, rtol=2.0**-22, atol=2.0**-148)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**40), st.integers(0, 10**6), st.integers(0, 99))
def test_noise_is_that_of_the_formula(seed: int, step: int, ordinal: int, start: int) -> None:
    def mix(x: int) -> int:
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ x >> 16

    key = mix((mix((mix(seed) + step) % 2**32) + ordinal) % 2**32)
    wanted = [mix(i ^ key) >> 16 for i in range(start, start + 5)]
    assert noise(seed, step, ordinal, 5, start).tolist() == wanted


def test_noise_is_even_and_unrelated_between_steps() -> None:
    drawn = [noise(0, step, 0, 2**16).astype(np.float64) / 2**16 for step in range(4)]
    assert all(abs(d.mean() - 0.5) < 0.005 for d in drawn)  # 4.4 standard deviations
    assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 0.02  # 5 standard deviations


def test_stochastic_rounding_goes_to_a_neighbour_and_is_right_on_average() -> None:
    chance = noise(1, 2, 3, len(VALUES))
    high = round_stochastic(VALUES, chance)
    down = (CANONICAL >> 16).astype(np.int64)
    assert (high[NAN] == 0x7FC0).all()
    exact = (CANONICAL & 0xFFFF) == 0
    np.testing.assert_array_equal(high[exact], down[exact])
    assert ((high - down)[~NAN] >= 0).all()
    assert ((high - down)[~NAN] <= 1).all()
    assert np.isfinite(widen(high)[np.isfinite(VALUES)]).all()
    thirds = np.full(2**18, 1 + 2.0**-7 / 3, np.float32)
    up = widen(round_stochastic(thirds, noise(0, 0, 0, len(thirds)))) > 1
    assert abs(up.mean() - 1 / 3) < 0.005  # 5 standard deviations


def test_an_unknown_rounding_is_refused() -> None:
    with pytest.raises(PolicyError, match="did you mean 'nearest'"):
        split(VALUES[:1], "nearset")


def test_schemes_are_read_with_their_variants() -> None:
    assert MasterWeights.parse("stochastic:7") == MasterWeights("stochastic", "stochastic", 7)
    assert [MasterWeights.parse(name).rounding for name in ("copy", "split")] == ["nearest", "away"]
    for text, message in (
        ("spilt", "did you mean 'split'"),
        ("split:up", "must be one of 'away', 'truncate', 'nearest'"),
        ("kahan:nearest", "must be one of ''"),
        ("stochastic:-1", "needs a seed of 0 to 4294967295"),
        (3, "`master` must be a text"),
    ):
        with pytest.raises(PolicyError, match=message):
            MasterWeights.parse(text)  # type: ignore[arg-type]
