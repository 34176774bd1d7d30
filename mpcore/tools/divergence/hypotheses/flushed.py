"""Gradients that one side sets to zero where they are small: a threshold, or a format that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.align import align_weights
from mpcore.tools.divergence.root_cause import RootCause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.tools.divergence.root_cause import Case

__all__ = ["from_flushed"]

_COUNT, _SHARE = 4, 0.01  # values that have to be gone, and their share of the array
_CLEAR = 0.7  # of the smallest value that is left: what lies below it is surely under the limit


def from_flushed(case: Case, layer: str | None = None) -> Iterator[RootCause]:
    """Yield layers whose small gradients are zero on one side, all of them, and not on the other.

    Args:
        case: the comparison.
        layer: only this one; None for all, from the last layer to the first.
    """
    sides = case.reference, case.own
    if not all(side.optimizer_steps for side in sides):
        return
    grads = [side.grads[side.optimizer_steps[0]] for side in sides]
    for a, b in reversed(list(align_weights(*grads))):
        if layer is not None and a.path != layer:
            continue
        for name in a.arrays.keys() & b.arrays.keys():
            left, right = (np.abs(np.asarray(x.arrays[name], np.float64)) for x in (a, b))
            if left.shape != right.shape:
                continue
            for who, gone, whole in (
                ("this side", right, left),
                ("the reference", left, right),
            ):
                limit = _limit(gone, whole)
                if limit:
                    share = float(((gone == 0) & (whole != 0)).mean())
                    sentence = (
                        f"{share:.0%} of the gradient of {a.path}.{name} is zero in {who} alone: "
                        f"all below {limit:.2g}"
                    )
                    fix = f"look for what sets small gradients of {a.path} to zero in {who}"
                    kind, sure = "other setting", "likely"
                    yield RootCause(kind, a.path, b.path, "backward", (sentence,), fix, sure)
                    return


def _limit(gone: Any, whole: Any) -> float:
    """Return the size below which ``gone`` has nothing and ``whole`` has; 0.0 if there is none."""
    left = gone[gone > 0]
    if not left.size:
        return 0.0  # nothing at all comes back: no matter of size
    limit = float(left.min())
    below = (whole > 0) & (whole < _CLEAR * limit)
    enough = int(below.sum()) >= max(_COUNT, _SHARE * whole.size)
    return limit if enough and not gone[below].any() else 0.0
