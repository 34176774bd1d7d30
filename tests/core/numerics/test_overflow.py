"""What a saturating device stores, and how a detector is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcore import OverflowDetector, PolicyError
from mpcore.numerics.dtypes import FORMATS, round_to
from mpcore.numerics.overflow import find_detector, saturate

VALUES = st.lists(st.floats(width=32), max_size=20)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@given(values=VALUES)
def test_nothing_but_finite_numbers_is_stored(dtype: str, values: list[float]) -> None:
    array = np.array(values, np.float32)
    stored, overflowed = saturate(array, dtype)
    assert np.isfinite(stored).all()
    assert np.abs(stored, dtype=np.float32).max(initial=0) <= FORMATS[dtype].max
    inside = np.abs(array) <= np.float32(FORMATS[dtype].max)
    np.testing.assert_array_equal(stored[inside], array[inside])
    assert overflowed is bool((~inside).any())


@given(values=VALUES)
def test_it_saturates_where_others_overflow(values: list[float]) -> None:
    """Rounding first, as the adapters do: the flag is raised exactly where inf or NaN stood."""
    rounded = round_to(np.array(values, np.float32), "float16")
    _, overflowed = saturate(rounded, "float16")
    assert overflowed is bool((~np.isfinite(rounded)).any())


def test_detector_is_found_by_name_or_taken_as_it_is() -> None:
    values, register = OverflowDetector(), OverflowDetector()
    kinds = {"values": values, "status_register": register}
    assert find_detector("auto", kinds, "status_register") is register
    assert find_detector("values", kinds, "status_register") is values
    own = OverflowDetector()
    assert find_detector(own, kinds, "values") is own


def test_detector_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"`detector` must be one of 'auto', 'values', got"):
        find_detector("status_register", {"values": OverflowDetector()}, "values")


def test_detector_of_values_has_no_opinion_of_its_own() -> None:
    detector = OverflowDetector()
    assert (detector.kind, detector.localises) == ("values", True)
    assert detector.begin() is detector.read([]) is detector.clear() is None
    assert detector.reduce((True, False), None) == (True, False)
