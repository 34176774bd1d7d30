"""One call of a layer in float64, and what speaks for a cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.distance import is_float

if TYPE_CHECKING:
    import numpy.typing as npt

    from mpcore.tools.inspection import LayerCall

    Array = npt.NDArray[np.float64]

__all__ = ["EXPLAINED", "Hint", "Side", "apart", "explains", "side_of"]

_LARGEST = 2**22  # values of a tensor that is looked at in float64
EXPLAINED = 0.35  # of the distance may be left: what rounding to 16 bits leaves


@dataclass(frozen=True)
class Hint:
    """Numbers that speak for one kind of cause."""

    kind: str
    sentence: str
    fix: str


@dataclass(frozen=True)
class Side:
    """One call in float64: input, output, arrays of the layer, settings."""

    x: Array
    y: Array
    arrays: dict[str, Any]
    call: LayerCall


def side_of(call: LayerCall, arrays: dict[str, Any]) -> Side | None:
    """Return a call in float64; None where it is too large, not finite, or not whole."""
    floats = [x.values for x in call.inputs if is_float(x)] or [x.values for x in call.inputs]
    went = [x.values for x in call.outputs]
    if not floats or not went or floats[0] is None or went[0] is None:
        return None
    if max(floats[0].size, went[0].size) > _LARGEST:
        return None
    if not (np.isfinite(floats[0]).all() and np.isfinite(went[0]).all()):
        return None
    wide = {name: np.asarray(a, np.float64) for name, a in arrays.items()}
    return Side(floats[0].astype(np.float64), went[0].astype(np.float64), wide, call)


def apart(y: Array | None, target: Array) -> float:
    """Return the relative L2 distance from ``target``; inf for another shape."""
    if y is None or y.shape != target.shape:
        return float("inf")
    norm = float(np.linalg.norm(target))
    return float(np.linalg.norm(y - target)) / (norm or 1.0)


def explains(y: Array | None, own: Side, away: float) -> bool:
    """Return whether ``y`` lies much nearer to the own output than the reference does."""
    return apart(y, own.y) < EXPLAINED * away
