"""Tolerances: how far noise alone moves each quantity of each layer, on one side."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

from mpcore.tools.divergence.distance import MARGIN, between, is_float, spacing

if TYPE_CHECKING:
    from mpcore.tools.divergence.align import Pair
    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.inspection import Inspection, LayerCall

__all__ = ["QUANTITIES", "Tolerances"]

QUANTITIES = ("inputs", "outputs", "grad_outputs", "grad_inputs")

_FLOORS = {
    # units of the compute format that rounding alone explains: (same backend, another one);
    # kernels of two frameworks add up in another order, and gradients pass more of them
    "inputs": (16.0, 80.0),
    "outputs": (16.0, 80.0),
    "grad_outputs": (160.0, 800.0),
    "grad_inputs": (160.0, 800.0),
}
_LOW_FLOORS = {"inputs": 1.0, "outputs": 1.0, "grad_outputs": 2.0, "grad_inputs": 2.0}
_LOCAL = 0.2  # units of a 16-bit format: only values at the border of rounding fall elsewhere
_LOCAL_SUMS = 1.0  # convolutions of some layouts add up in 16 bits


class Tolerances:
    """The tolerances of two sides, made from their moved and reseeded inspections."""

    def __init__(self, reference: Evidence, own: Evidence) -> None:
        """Keep the two sides."""
        self.sides = (reference, own)
        self.same_backend = reference.backend == own.backend
        self._compute = {side.compute for side in self.sides}
        self._chance = not (self.same_backend and _drew_alike(reference, own))

    def of(self, pair: Pair, quantity: str) -> float:
        """Return the tolerance of one quantity of an aligned call."""
        known = [
            _noise(side, place, quantity, self._others(side))
            for side, place in zip(self.sides, pair.places, strict=True)
            if place >= 0
        ]
        return max(MARGIN * max(known, default=0.0), self._floor(pair, quantity))

    def local(self, pair: Pair) -> float:
        """Return the tolerance of the output where the inputs agree to the last bit."""
        dtypes = [x.dtype for call in (pair.reference, pair.own) if call for x in call.outputs]
        unit = spacing(*dtypes)
        if not set(dtypes) & {"float16", "bfloat16"}:
            return _FLOORS["outputs"][0] * unit
        found = pair.reference or pair.own
        sums = found is not None and found.category in ("conv", "conv_transpose")
        return (_LOCAL_SUMS if sums else _LOCAL) * unit

    def loss(self) -> float:
        """Return the tolerance of the loss."""
        found = [0.0]
        for side in self.sides:
            for other in self._others(side):
                away = abs(other.loss - side.inspection.loss)
                size = abs(side.inspection.loss)
                found.append(away / size if size else 0.0)
        finite = [value if np.isfinite(value) else inf for value in found]
        units = (
            _LOW_FLOORS if self._low() else {"outputs": _FLOORS["outputs"][not self.same_backend]}
        )
        return max(MARGIN * max(finite), units["outputs"] * spacing(*self._compute))

    def gradient(self, path: str) -> float:
        """Return the tolerance of the gradients of the parameters in the layer at own ``path``."""
        found = [0.0]
        for side in self.sides:
            grads = side.inspection.grads
            names = [n for n in grads if n.startswith(path) and not n[len(path) :][:1].isalnum()]
            sizes = [g.norm for g in grads.values() if g is not None]
            least = 1e-2 * float(np.sqrt(np.mean(np.square(sizes)))) if sizes else 0.0
            for other in self._others(side):
                for name in names:
                    a, b = grads[name], other.grads.get(name)
                    seen = between([a], [b], (1.0, side.inspection.scale / other.scale))
                    if a is not None and seen is not None:
                        size = a.norm / max(a.norm, least, 1e-30)
                        found.append(seen[0].relative * size)
        floor = self._units("grad_inputs") * spacing(*self._compute)
        return max(MARGIN * max(found), floor)

    @property
    def narrowest(self) -> str:
        """The narrowest format that one of the sides computes in."""
        return next((f for f in ("bfloat16", "float16") if f in self._compute), "float32")

    def random(self, place: int, side: int) -> bool:
        """Return whether the output of one call depends on the state of random numbers."""
        return _random(self.sides[side], place)

    def _others(self, side: Evidence) -> list[Inspection]:
        """Return what tells the noise: other random numbers only where both sides draw others."""
        chance = [side.reseeded] if side.reseeded is not None and self._chance else []
        return [*side.moved, *chance]

    def _low(self) -> bool:
        return self._compute != {"float32"}

    def _units(self, quantity: str) -> float:
        return _LOW_FLOORS[quantity] if self._low() else _FLOORS[quantity][not self.same_backend]

    def _floor(self, pair: Pair, quantity: str) -> float:
        return self._units(quantity) * spacing(*self._compute)


def _drew_alike(reference: Evidence, own: Evidence) -> bool:
    """Return whether no layer that draws random numbers on both sides drew others."""
    places = {
        call.path: place
        for place, call in enumerate(own.inspection.calls)
        if call.category != "op" and _random(own, place)
    }
    for place, call in enumerate(reference.inspection.calls):
        if call.path not in places or not _random(reference, place):
            continue
        other = own.inspection.calls[places[call.path]]
        came, went = (
            between(getattr(call, q), getattr(other, q), (1.0, 1.0)) for q in ("inputs", "outputs")
        )
        if came is not None and came[1] and went is not None and not went[1]:
            return False
    return True


def _partner(other: Inspection, place: int, call: LayerCall) -> LayerCall | None:
    found = other.calls[place] if place < len(other.calls) else None
    return found if found is not None and found.path == call.path else None


def _noise(side: Evidence, place: int, quantity: str, others: list[Inspection]) -> float:
    call, found = side.inspection.calls[place], 0.0
    for other in others:
        moved = _partner(other, place, call)
        if moved is None:
            return inf  # another way through the model: nothing can be told
        factor = 1.0
        if quantity.startswith("grad"):
            factor = side.inspection.scale / other.scale
        keep = [
            (a, b)
            for a, b in zip(getattr(call, quantity), getattr(moved, quantity), strict=False)
            if a is not None and is_float(a)
        ]
        seen = between([a for a, _ in keep], [b for _, b in keep], (1.0, factor))
        if seen is not None:
            found = max(found, seen[0].relative)
    return found


def _random(side: Evidence, place: int) -> bool:
    """Return whether other random numbers make another output of the same inputs."""
    if side.reseeded is None or place < 0:
        return False
    call = side.inspection.calls[place]
    other = _partner(side.reseeded, place, call)
    if other is None:
        return True
    came = between(call.inputs, other.inputs, (1.0, 1.0))
    went = between(call.outputs, other.outputs, (1.0, 1.0))
    return went is not None and not went[1] and (came is None or came[1])
