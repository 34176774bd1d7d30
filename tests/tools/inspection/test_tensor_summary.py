"""Sketches tell what a tensor holds, and how far it lies from another one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import mpcore as mp
from mpcore.tools.inspection import Request, difference, summarize
from mpcore.tools.inspection.tensor_summary import summarize_rows

SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)
TENSORS = arrays.arrays(np.float32, SHAPES, elements=FLOATS)
SIZES = st.sampled_from([1000, 32511, 32512, 32513, 70_001])
SEEDS = st.integers(0, 2**32 - 1)


def normal(seed: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@given(TENSORS)
def test_statistics(values):
    found = summarize(values, "float16")
    finite = values[np.isfinite(values)].astype(np.float64)
    sizes = np.abs(finite)
    assert (found.shape, found.dtype, found.count) == (values.shape, "float16", values.size)
    assert found.infinite == np.isinf(values).sum()
    assert found.undefined == np.isnan(values).sum()
    assert found.finite == np.isfinite(values).all()
    assert found.zeros == (values == 0).sum()
    assert found.peak == sizes.max(initial=0.0)
    assert found.least == (min(sizes[sizes > 0]) if sizes.any() else 0)
    np.testing.assert_allclose(found.norm, np.linalg.norm(finite), rtol=1e-9)
    mean = finite.mean() if finite.size else 0.0
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9, atol=1e-9 * found.peak)
    assert found.buckets.nbytes + found.sample.nbytes <= 768
    assert found.values is None
    np.testing.assert_array_equal(summarize(values, keep=True).values, values)


@given(SEEDS, SIZES)
def test_statistics_of_long_tensors(seed, size):
    values = normal(seed, size)
    values[seed % size], values[0], values[-1] = 0, np.inf, np.nan
    found, finite = summarize(values), values[1:-1]
    assert (found.infinite, found.undefined, found.zeros) == (1, 1, (values == 0).sum())
    assert found.peak == np.abs(finite).max()
    assert found.least == np.abs(finite[finite != 0]).min()
    np.testing.assert_allclose(found.norm, np.linalg.norm(finite.astype(np.float64)), rtol=1e-9)
    np.testing.assert_allclose(found.mean, finite.mean(dtype=np.float64), atol=1e-12)


@given(TENSORS, st.data())
def test_a_digest_is_that_of_all_bits_in_their_places(values, data):
    found = summarize(values)
    same = difference(found, summarize(values.copy()))
    assert (same.relative, same.exact) == (0, True)
    if not values.size:
        return
    other = values.copy()
    other.view(np.uint32).reshape(-1)[data.draw(st.integers(0, values.size - 1))] ^= 1
    assert summarize(other).digest != found.digest
    turned = values.reshape(-1)[::-1].reshape(values.shape)
    equal = turned.tobytes() == values.tobytes()
    assert (summarize(turned).digest == found.digest) == equal


@given(SEEDS, SIZES, st.sampled_from([1e-6, 1e-3, 0.3]))
def test_an_estimated_distance_is_near_the_true_one(seed, size, apart):
    values = normal(seed, size)
    other = values + np.float32(apart) * normal(seed + 1, size)
    true = np.linalg.norm(values.astype(np.float64) - other) / np.linalg.norm(values)
    found = difference(summarize(values), summarize(other))
    assert 0.6 < found.relative / true < 1.5  # five times what the buckets scatter
    assert not found.exact
    whole = difference(summarize(values, keep=True), summarize(other, keep=True))
    assert whole.exact
    assert whole.relative == pytest.approx(true, rel=1e-6)
    cosine = np.dot(values, other) / np.linalg.norm(values) / np.linalg.norm(other)
    assert whole.cosine == pytest.approx(cosine, abs=1e-4)


@given(SEEDS, SIZES)
def test_one_value_that_differs_is_seen_exactly(seed, size):
    values = normal(seed, size)
    other = values.copy()
    other[seed % size] += 1
    found = difference(summarize(values), summarize(other))
    assert found.relative == pytest.approx(1 / np.linalg.norm(values), rel=1e-3)


def test_tensors_at_the_end_of_float32():
    values = np.full(70_001, 3e38, np.float32)
    found = difference(summarize(values), summarize(values * np.float32(0.9)))
    assert found.relative == pytest.approx(0.1, rel=1e-5)
    assert found.cosine == pytest.approx(1, abs=1e-5)
    assert summarize(values).mean == pytest.approx(3e38)


def test_numbers_by_value():
    values = np.float32([1.0, 2.0, -4.0, 1e-6])  # the last one is too small to count
    other = np.float32([1.0, 2.0 * (1 + 2**-9), -4.0 * (1 + 2**-23), 0.0])
    found = difference(summarize(values, keep=True), summarize(other, keep=True))
    assert found.off == pytest.approx(1 / 3)
    assert found.largest == pytest.approx(2**-9)
    assert found.ulp == pytest.approx(2**14)
    assert summarize(values).numbers()["shape"] == [4]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1.0, 2.0], [[1.0, 2.0]]),
        ([1.0, np.inf], [1.0, 2.0]),
        ([1.0, np.nan], [1.0, np.inf]),
        ([np.inf, 1.0], [1.0, np.inf]),
        ([np.inf, 1.0], [-np.inf, 1.0]),
        ([0.0, 0.0], [0.0, 1.0]),
    ],
)
def test_what_cannot_be_compared_is_infinitely_far(keep, one, other):
    pair = [summarize(np.float32(x), keep=keep) for x in (one, other)]
    assert difference(*pair).relative == math.inf


@pytest.mark.parametrize("broken", [np.inf, -np.inf, np.nan])
def test_the_finite_rest_is_compared(broken):
    pair = [summarize(np.float32([broken, 3.0, x])) for x in (4.0, 4.5)]
    assert difference(*pair).relative == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"layout": "channels_last"}, "`layout` must be"),
        ({"scale": 0.0}, "`scale` must be above 0"),
        ({"scale": math.inf}, "`scale` must be above 0"),
        ({"keep": "fc1"}, "`keep` must be a set"),
        ({"ops": "*"}, "`ops` must be a set"),
    ],
)
def test_a_wrong_request_is_refused(wrong, words):
    with pytest.raises(mp.BackendError, match=words):
        Request(**wrong)


def test_rows_are_summarized_as_they_are_one_by_one() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 64, 127, 200, 2048, 2049):
        rows = rng.normal(size=(5, size)).astype(np.float32)
        rows[1], rows[2, : size // 2], rows[3], rows[4, 0] = 0, 0, 1e-42, -0.0
        for row, found in zip(rows, summarize_rows(rows), strict=True):
            for name, value in vars(summarize(row)).items():
                assert np.array_equal(getattr(found, name), value), (size, name)
