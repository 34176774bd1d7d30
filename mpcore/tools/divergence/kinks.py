"""Did one activation fall to the other side? Proved by what came in and the gradients around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mpcore.tools.divergence.align import align
from mpcore.tools.divergence.distance import spacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.inspection import LayerCall, TensorSummary

    Array = npt.NDArray[np.float64]
    Places = npt.NDArray[np.bool_]

__all__ = ["BENT", "kink", "kink_proof", "whole"]

BENT = ("activation", "pooling")
"""Categories of layers whose derivative jumps."""

_NEAR = 64.0  # roundings of the largest input that two sides of a kink may lie apart
_SAME = 0.02  # relative: a derivative that differs by less is the same one
_LEAST = 1e-3  # roundings of the largest gradient: what differs by less counts for nothing
_FEW = 0.01  # of the values of a layer; more than these fall to no other side by chance
_HANDED = 0.05  # relative: how far gradients may lie apart that are the same but for kinks
_KINKS = (0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0)
"""Where derivatives jump: ReLU and its kin, shrinking ones, hard tanh, hard sigmoid, ReLU6."""


@dataclass(frozen=True)
class _Call:
    """One call of an activation or a pooling: its input and both gradients, float64."""

    x: Array
    came: Array
    handed: Array


def kink_proof(reference: Evidence, own: Evidence) -> tuple[str, str]:
    """Return the layer at whose kink two sides part, and the proof in words.

    A layer proves it if it got the same gradient and hands down another one at a few places
    only, and its inputs at just those places lie within rounding: on two sides of the point
    where the derivative jumps (ReLU), or of another value (max-pooling).

    Args:
        reference: one step of a side, whose activations and poolings hold whole tensors.
        own: the same step of the other.

    Returns:
        ``("", why not)`` where nothing proves it.
    """
    scales = reference.inspection.scale, own.inspection.scale
    pairs = align(reference.inspection.calls, own.inspection.calls)
    seen = 0
    # From the last layer back: what lies before a kink got another gradient from it.
    for pair in reversed(pairs):
        if pair.reference is None or pair.own is None or pair.reference.category not in BENT:
            continue
        told = _inside((pair.reference, pair.own), scales, _HANDED)
        seen += told is not None
        if told:
            return pair.path, f"{pair.path} ({pair.reference.type}): {told}"
    return "", f"none of {seen} activations and poolings explains it"


def kink(calls: tuple[LayerCall, LayerCall], scales: tuple[float, float], tolerance: float) -> str:
    """Return in words that a layer, or a ReLU written behind it, met its kink; ``""`` if not.

    Args:
        calls: of the two sides, with whole tensors.
        scales: by which their gradients are multiplied.
        tolerance: relative; how far the gradients may lie apart everywhere else.
    """
    if calls[0].category in BENT:
        return _inside(calls, scales, tolerance) or ""
    return _behind(calls, scales, tolerance)


def _inside(
    calls: tuple[LayerCall, LayerCall], scales: tuple[float, float], tolerance: float
) -> str | None:
    """Return the proof for a layer that bends; None where its tensors are not known."""
    sides = _call(calls[0], scales[0]), _call(calls[1], scales[1])
    if sides[0] is None or sides[1] is None or sides[0].x.shape != sides[1].x.shape:
        return None
    unit = spacing(*(x.dtype for call in calls for x in call.inputs))
    return _fallen(sides[0], sides[1], unit, tolerance)


def _call(call: LayerCall, scale: float) -> _Call | None:
    x, came, handed = map(whole, (call.inputs, call.grad_outputs, call.grad_inputs))
    if x is None or came is None or handed is None or handed.shape != x.shape:
        return None
    return _Call(x, came / scale, handed / scale)


def whole(tensors: Sequence[TensorSummary | None]) -> Array | None:
    """Return the numbers of the first tensor that has all of them."""
    values = next((t.values for t in tensors if t is not None and t.values is not None), None)
    return None if values is None else np.asarray(values, np.float64)


def _fallen(a: _Call, b: _Call, unit: float, tolerance: float) -> str:
    """Return the values that fell to the other side in words; ``""`` if that is not it."""
    if a.came.shape != b.came.shape or _relative(a.came, b.came) > _HANDED:
        return ""
    least = _LEAST * unit * float(np.abs(a.handed).max(initial=0.0))
    if a.came.shape == a.x.shape:
        slopes = a.handed * b.came, b.handed * a.came
        off = np.abs(slopes[0] - slopes[1]) > _SAME * np.abs(a.came * b.came)
    else:
        larger = np.maximum(np.abs(a.handed), np.abs(b.handed))
        off = np.abs(a.handed - b.handed) > _HANDED * larger
    off &= np.abs(a.handed - b.handed) > least
    if not _few(off) or _relative(a.handed[~off], b.handed[~off]) > tolerance:
        return ""
    near = _near(a.x, b.x, unit)
    if not (np.abs(a.x - b.x)[off] <= near).all():
        return ""
    if a.came.shape == a.x.shape:
        proved = _straddles(a.x[off], b.x[off], _KINKS)
    else:
        proved = all(_rival(side.x, place, off, near) for side in (a, b) for place in _places(off))
    return _words("the input", a.x, b.x, off) if proved else ""


def _behind(
    calls: tuple[LayerCall, LayerCall], scales: tuple[float, float], tolerance: float
) -> str:
    """Return the proof for a ReLU that is written as a function of a layer's output.

    What comes back is zero on one side alone, at just the outputs that lie on two sides of zero.
    """
    found = [whole(call.outputs) for call in calls] + [whole(c.grad_outputs) for c in calls]
    y, other, came, back = found
    if y is None or other is None or came is None or back is None:
        return ""
    if len({x.shape for x in (y, other, came, back)}) > 1:
        return ""
    came, back = came / scales[0], back / scales[1]
    off = (came == 0) != (back == 0)
    if not _few(off) or _relative(came[~off], back[~off]) > tolerance:
        return ""
    unit = spacing(*(x.dtype for call in calls for x in call.outputs))
    if not (np.abs(y - other)[off] <= _near(y, other, unit)).all():
        return ""
    return _words("the output", y, other, off) if _straddles(y[off], other[off], (0.0,)) else ""


def _few(off: Places) -> bool:
    return 0 < int(off.sum()) <= max(4, _FEW * off.size)


def _near(a: Array, b: Array, unit: float) -> float:
    """Return how far two values may lie apart by rounding."""
    peak = max(float(np.abs(x).max(initial=0.0)) for x in (a, b))
    return min(_NEAR * unit * peak, 0.1 * float(np.sqrt(np.square(a).mean()))) + 1e-300


def _straddles(a: Array, b: Array, kinks: Sequence[float]) -> bool:
    """Return whether each two values lie on two sides of a kink; the same value has one slope."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    between = [(low <= point) & (point <= high) for point in kinks]
    return bool((np.any(between, axis=0) & (a != b)).all())


def _words(what: str, a: Array, b: Array, off: Places) -> str:
    place = next(_places(off))
    where, count = ", ".join(map(str, place)), int(off.sum())
    more = f" and {count - 1} more of {off.size}" if count > 1 else f" of {off.size}"
    values = f"{a[place]:.3g} on one side and {b[place]:.3g} on the other"
    return f"{what} at ({where}){more} is {values}"


def _relative(a: Array, b: Array) -> float:
    norm = float(np.linalg.norm(a))
    return float(np.linalg.norm(b - a)) / norm if norm else float(np.linalg.norm(b) > 0)


def _rival(x: Array, place: tuple[int, ...], off: Places, near: float) -> bool:
    """Return whether a place of a pooling has another as large that took its gradient."""
    others = [p for p in _places(off) if p != place and p[:2] == place[:2]]
    return any(abs(x[p] - x[place]) <= near for p in others)


def _places(off: Places) -> Iterator[tuple[int, ...]]:
    for place in np.argwhere(off):
        yield tuple(int(i) for i in place)
