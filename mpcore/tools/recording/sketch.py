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

__all__ = ["KEPT", "SKETCHED", "sketch", "sketched_weights"]

SKETCHED = 4096
"""Values of a larger tensor that its sketch is made of."""

KEPT = 192
"""Values of each parameter, gradient and statistic that are kept as they are."""


def sketch(values: npt.NDArray[np.float32], dtype: str) -> TensorSummary:
    """Return the summary of a tensor, of ``SKETCHED`` of its values where it has more.

    Its digest covers all of them: it differs if one value does.

    Args:
        values: in the neutral layout.
        dtype: the framework stored them in.
    """
    if values.size <= SKETCHED:
        return summarize(values, dtype)
    chosen = values[np.unravel_index(_places(values.size, SKETCHED), values.shape)]
    found = summarize(chosen, dtype)
    # A change of one value changes it, whatever order they lie in.
    whole = np.ascontiguousarray(values).reshape(-1)
    pairs = whole[: whole.size // 2 * 2].view(np.uint64)
    every = int(np.bitwise_xor.reduce(pairs)) ^ int(whole[-1:].view(np.uint32)[0])
    return replace(found, shape=values.shape, digest=found.digest ^ every)


def sketched_weights(weights: Sequence[LayerWeights]) -> list[LayerWeights]:
    """Return layers with some values of each array, in one axis where there are more."""

    def some(array: Any) -> Any:
        flat = np.asarray(array, np.float32)
        if flat.size <= KEPT:
            return flat
        return flat[np.unravel_index(_places(flat.size, KEPT), flat.shape)]

    return [
        LayerWeights(w.path, w.category, {name: some(a) for name, a in w.arrays.items()})
        for w in weights
    ]


@lru_cache(maxsize=4096)
def _places(size: int, count: int) -> npt.NDArray[np.int64]:
    """Return ``count`` places below ``size``: drawn, so that no axis divides their distance."""
    rng = np.random.default_rng(size)
    return np.sort(rng.integers(0, size, count))
