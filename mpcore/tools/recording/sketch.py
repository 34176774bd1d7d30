"""What is kept of a tensor while a script trains: a summary of some of its values."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.tools.recording.rows import Pending, summarized

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from mpcore.tools.inspection.tensor_summary import TensorSummary

__all__ = ["CHECKED", "KEPT", "SKETCHED", "sketch", "sketched_weights", "taken"]

SKETCHED = 2048
"""Values of a larger tensor that its sketch is made of."""

CHECKED = 2**16
"""Values of the largest tensor that is read as a whole."""

KEPT = 192
"""Values of each parameter, gradient and statistic that are kept as they are."""


def taken(values: npt.NDArray[np.float32], dtype: str) -> Pending:
    """Return what a sketch of a tensor is made of: ``SKETCHED`` values where it has more.

    The digest will cover all values of a tensor with at most ``CHECKED``.

    Args:
        values: in the neutral layout.
        dtype: the framework stored them in.
    """
    if values.size <= SKETCHED:
        return Pending(np.array(values, np.float32, order="C").reshape(-1), values.shape, dtype)
    chosen = _chosen(values, SKETCHED)
    if values.size > CHECKED:
        return Pending(chosen, values.shape, dtype)
    # A change of one value changes it, whatever order they lie in.
    whole = values.reshape(-1).view(np.uint32) if values.flags.c_contiguous else _bits(values)
    return Pending(chosen, values.shape, dtype, int(np.bitwise_xor.reduce(whole)))


def sketch(values: npt.NDArray[np.float32], dtype: str) -> TensorSummary:
    """Return the summary of a tensor, of ``SKETCHED`` of its values where it has more."""
    return summarized([taken(values, dtype)])[0]


def _bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint32)


def sketched_weights(
    weights: Sequence[LayerWeights], keep: frozenset[str] = frozenset()
) -> list[LayerWeights]:
    """Return layers with some values of each array, in one axis where there are more.

    Args:
        weights: of a model.
        keep: paths of layers whose arrays stay whole.
    """

    def some(array: Any) -> Any:
        flat = np.asarray(array, np.float32)
        if flat.size <= KEPT:
            return flat.copy()  # it may be the model's own memory
        return _chosen(flat, KEPT)

    return [
        LayerWeights(
            w.path,
            w.category,
            {
                n: np.array(a, np.float32) if w.path in keep else some(a)
                for n, a in w.arrays.items()
            },
        )
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
