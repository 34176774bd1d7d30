"""Running variances that a framework keeps biased, and another one unbiased."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from mpcore.capabilities.differences import Difference, differences_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from mpcore.tools.inspection import LayerCall

    Array = npt.NDArray[np.float64]

__all__ = ["entry_of", "follows", "of_call"]

_LEFT = 0.2  # of the distance: what rounding of the batch's own values may leave


def entry_of(reference: str, own: str) -> Difference | None:
    """Return the known difference of two backends' running variances; None where there is none."""
    found = [
        [e for e in differences_of(backend) if "statistics" in e.quantities]
        for backend in (reference, own)
    ]
    return next(iter(found[0] or found[1]), None) if bool(found[0]) != bool(found[1]) else None


def follows(moves: Sequence[Array], old: Array, count: int, biased: int) -> bool:
    """Return whether two moves of a running variance follow from n and n - 1 in its variance.

    With share s of the new batches' variance v the moves are s (v - old) and
    s (v n / (n - 1) - old), however often a step updates it.

    Args:
        moves: of the reference and of the other side.
        old: the variance before.
        count: values a channel, n.
        biased: which of the moves is the biased one, 0 or 1.
    """
    if count < 2:
        return False
    kept, unbiased = moves[biased], moves[1 - biased]
    factor = count / (count - 1)
    rest, line = unbiased - factor * kept, (factor - 1) * old
    share = float(rest @ line) / (float(line @ line) or 1.0)
    away = float(np.linalg.norm(unbiased - kept))
    return 0.0 < share <= 1.05 and float(np.linalg.norm(rest - share * line)) <= _LEFT * away


def of_call(call: LayerCall | None) -> int:
    """Return how many values a channel the normalisation of a call saw; 0 if nobody knows."""
    shape = call.inputs[0].shape if call is not None and call.inputs else ()
    return prod(shape) // shape[1] if len(shape) > 1 and shape[1] else 0
