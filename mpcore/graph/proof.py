"""Whether two runs gave the same: what a proof of a graph compares, as numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ORDER", "difference", "same"]

ORDER = 2e-6
"""How far gradients may be off, relative to all: sums of float32 in another order."""


def same(a: Any, b: Any) -> bool:
    """Return whether two arrays are the same bit for bit; a NaN is one NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def difference(own: Any, found: Any, state: str, order: float = ORDER) -> str:
    """Return in words what differs; ``""`` if nothing does.

    Args:
        own: outputs, what was assigned to, and gradients (None where there is none).
        found: the same of the other run.
        state: what is assigned to.
        order: how far gradients may be off, relative to the norm of all.
    """
    for what, mine, theirs in zip(("outputs", state), own, found, strict=False):
        if len(mine) != len(theirs) or not all(map(same, mine, theirs)):
            return what
    pairs = list(zip(own[2], found[2], strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        return "gradients (one is missing)"
    there = [(a, b) for a, b in pairs if a is not None]
    size, off = _norm([a for a, _ in there]), _norm([a - b for a, b in there])
    if not np.isfinite(size):
        return ""  # nothing can be said of gradients that are no numbers
    return f"gradients (off by {off / (size or 1):.1e} of their norm)" if off > order * size else ""


def _norm(arrays: Sequence[Any]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.square(a, dtype=np.float64))) for a in arrays)))
