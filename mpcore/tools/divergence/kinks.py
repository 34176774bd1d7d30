"""Did one activation fall to the other side? Proved by what came in and the gradients around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.align import align
from mpcore.tools.divergence.distance import spacing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.inspection import LayerCall, TensorSummary

    Array = npt.NDArray[np.float64]

__all__ = ["kink_proof"]

_NEAR = 64.0  # roundings of the largest input that two sides of a kink may lie apart
_SAME = 0.02  # relative: a derivative that differs by less is the same one
_FEW = 0.01  # of the values of a layer; more than these fall to no other side by chance
_HANDED = 0.05  # relative: how far the gradient that came in may lie apart


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
        if pair.reference is None or pair.own is None:
            continue
        if pair.reference.category not in ("activation", "pooling"):
            continue
        sides = _call(pair.reference, scales[0]), _call(pair.own, scales[1])
        if sides[0] is None or sides[1] is None or sides[0].x.shape != sides[1].x.shape:
            continue
        seen += 1
        unit = spacing(*(x.dtype for call in (pair.reference, pair.own) for x in call.inputs))
        told = _fallen(sides[0], sides[1], unit)
        if told:
            return pair.path, f"{pair.path} ({pair.reference.type}): {told}"
    return "", f"none of {seen} activations and poolings explains it"


def _call(call: LayerCall, scale: float) -> _Call | None:
    whole = [
        next((t for t in tensors if t is not None and t.values is not None), None)
        for tensors in (call.inputs, call.grad_outputs, call.grad_inputs)
    ]
    if any(t is None for t in whole):
        return None
    x, came, handed = (np.asarray(_values(t), np.float64) for t in whole)
    return _Call(x, came / scale, handed / scale) if handed.shape == x.shape else None


def _values(found: TensorSummary | None) -> Any:
    return None if found is None else found.values


def _fallen(a: _Call, b: _Call, unit: float) -> str:
    """Return the values that fell to the other side in words; ``""`` if that is not it."""
    if a.came.shape != b.came.shape or _relative(a.came, b.came) > _HANDED:
        return ""
    size = max(float(np.abs(a.handed).max(initial=0.0)), 1e-300)
    off = np.abs(a.handed - b.handed) > _SAME * size + _HANDED * np.abs(a.handed)
    count = int(off.sum())
    if not count or count > max(4, _FEW * off.size):
        return ""
    near = _NEAR * unit * max(float(np.abs(a.x).max(initial=0.0)), 1e-300)
    near = min(near, 0.1 * float(np.sqrt(np.square(a.x).mean())) + 1e-300)
    if not (np.abs(a.x - b.x)[off] <= near).all():
        return ""
    if a.came.shape == a.x.shape and not _jumps(a, b, off):
        return ""
    if a.came.shape != a.x.shape and not all(_rival(a, b, place, off) for place in _places(off)):
        return ""
    place = next(_places(off))
    where = ", ".join(map(str, place))
    more = f" and {count - 1} more of {off.size}" if count > 1 else f" of {off.size}"
    values = f"{a.x[place]:.3g} on one side and {b.x[place]:.3g} on the other"
    return f"the input at ({where}){more} is {values}"


def _relative(a: Array, b: Array) -> float:
    norm = float(np.linalg.norm(a))
    return float(np.linalg.norm(b - a)) / norm if norm else float(np.linalg.norm(b) > 0)


def _jumps(a: _Call, b: _Call, off: npt.NDArray[np.bool_]) -> bool:
    """Return whether two values of one derivative are met there, and nowhere else exchanged."""
    with np.errstate(all="ignore"):
        slopes = [np.where(c.came != 0, c.handed / c.came, np.nan) for c in (a, b)]
    apart = np.abs(slopes[0] - slopes[1])[off]
    # The same input on both sides cannot have two slopes.
    return bool(np.isfinite(apart).all() and (a.x != b.x)[off].all())


def _rival(a: _Call, b: _Call, place: tuple[int, ...], off: npt.NDArray[np.bool_]) -> bool:
    """Return whether a place of a pooling has another as large that took its gradient."""
    others = [p for p in _places(off) if p != place and p[:2] == place[:2]]
    unit = max(abs(a.x[place]), abs(b.x[place]), 1e-300)
    return any(abs(a.x[p] - a.x[place]) <= 0.05 * unit for p in others)


def _places(off: npt.NDArray[np.bool_]) -> Iterator[tuple[int, ...]]:
    for place in np.argwhere(off):
        yield tuple(int(i) for i in place)
