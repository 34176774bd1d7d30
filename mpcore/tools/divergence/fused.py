"""A layer that runs its activation inside, beside one whose activation comes behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpcore.tools.divergence.align import Pair
    from mpcore.tools.inspection import LayerCall

__all__ = ["activation_of", "fused_side", "inner_places", "with_activation"]

_PRODUCTS = ("linear", "conv", "conv_transpose")


Calls = Sequence["LayerCall"]


def activation_of(call: LayerCall | None, calls: Calls) -> str:
    """Return the activation that a product runs inside; ``""`` for none."""
    if call is None or call.category not in _PRODUCTS:
        return ""
    name = str(call.attributes.get("activation", ""))
    if name == "gelu" and call.attributes.get("approximate") == "tanh":
        return "gelu (tanh)"
    place = _inner(call, calls) if not name else None
    return name or ("" if place is None else calls[place].type.lower())


def _inner(call: LayerCall, calls: Calls) -> int | None:
    """Return the place of the call of an activation that lies in a layer and makes its output."""
    made = {x.digest for x in call.outputs}
    for place, other in enumerate(calls):
        held = other.category == "activation" and other.path.startswith(f"{call.path}.")
        if held and made & {x.digest for x in other.outputs}:
            return place
    return None


def inner_places(calls: Calls) -> set[int]:
    """Return the places of all activations that products run inside."""
    found = {_inner(call, calls) for call in calls if call.category in _PRODUCTS}
    return {place for place in found if place is not None}


def fused_side(pair: Pair, calls: tuple[Calls, Calls]) -> int | None:
    """Return which of two calls alone runs its activation inside: 0, 1, or None."""
    if pair.reference is None or pair.own is None:
        return None
    both = zip((pair.reference, pair.own), calls, strict=True)
    inside = [bool(activation_of(call, known)) for call, known in both]
    if inside[0] == inside[1] or pair.reference.category not in _PRODUCTS:
        return None
    return inside.index(True)


def with_activation(pair: Pair, calls: tuple[Calls, Calls]) -> Pair | None:
    """Return the fused call beside the activation that the other side calls behind its product.

    None where that is written as a function: what comes in at the next layer tells then.

    Args:
        pair: of which one call is fused.
        calls: of both sides' inspections.
    """
    fused = fused_side(pair, calls)
    product = pair.own if fused == 0 else pair.reference
    if fused is None or product is None:
        return None
    made = {x.digest for x in product.outputs}
    place = pair.places[1 - fused]
    for number, call in enumerate(calls[1 - fused]):
        if number <= place or call.category != "activation":
            continue
        if made & {x.digest for x in call.inputs}:
            if fused == 0:
                return replace(pair, own=call, places=(pair.places[0], number))
            return replace(pair, reference=call, places=(number, pair.places[1]))
    return None
