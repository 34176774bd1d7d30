"""What is kept of a tensor while a script trains: a summary of some of its values."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.tools.inspection.tensor_summary import summarize

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from mpcore.tools.inspection.tensor_summary import TensorSummary

__all__ = ["CHECKED", "KEPT", "SKETCHED", "sketch", "sketched_weights"]

SKETCHED = 2048
"""Values of a larger tensor that its sketch is made of."""

CHECKED = 2**16
"""Values of the largest tensor that is read as a whole."""

KEPT = 192
"""Values of each parameter, gradient and statistic that are kept as they are."""


def sketch(values: npt.NDArray[np.float32], dtype: str) -> TensorSummary:
    """Return the summary of a tensor, of ``SKETCHED`` of its values where it has more.

    The digest covers all values of a tensor with at most ``CHECKED``.

    Args:
        values: in the neutral layout.
        dtype: the framework stored them in.
    """
    if values.size <= SKETCHED:
        return summarize(values, dtype)
    found = summarize(_chosen(values, SKETCHED), dtype)
    found = replace(found, shape=values.shape)
    if values.size > CHECKED:
        return found
    # A change of one value changes it, whatever order they lie in.
    whole = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    return replace(found, digest=found.digest ^ int(np.bitwise_xor.reduce(whole)))


def sketched_weights(weights: Sequence[LayerWeights]) -> list[LayerWeights]:
    """Return layers with some values of each array, in one axis where there are more."""

    def some(array: Any) -> Any:
        flat = np.asarray(array, np.float32)
        if flat.size <= KEPT:
            return flat
        return _chosen(flat, KEPT)

    return [
        LayerWeights(w.path, w.category, {name: some(a) for name, a in w.arrays.items()})
        for w in weights
    ]


def _chosen(values: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
    places = _places(values.size, count)
    if values.flags.c_contiguous:
        return values.reshape(-1)[places]
    return values[np.unravel_index(places, values.shape)]


@lru_cache(maxsize=4096)
def _places(size: int, count: int) -> npt.NDArray[np.int64]:
    """Return ``count`` places below ``size``: drawn, so that no axis divides their distance."""
    rng = np.random.default_rng(size)
    return np.sort(rng.integers(0, size, count))
