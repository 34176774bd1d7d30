"""A layer that runs its activation inside, beside one whose activation comes behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.tools.divergence.align import Pair
    from mpcore.tools.inspection import LayerCall

__all__ = ["activation_of", "fused_side", "with_activation"]

_PRODUCTS = ("linear", "conv", "conv_transpose")


def activation_of(call: LayerCall | None) -> str:
    """Return the activation that a product runs inside; ``""`` for none."""
    if call is None or call.category not in _PRODUCTS:
        return ""
    name = str(call.attributes.get("activation", ""))
    if name == "gelu" and call.attributes.get("approximate") == "tanh":
        return "gelu (tanh)"
    return name


def fused_side(pair: Pair) -> int | None:
    """Return which of two calls alone runs its activation inside: 0, 1, or None."""
    if pair.reference is None or pair.own is None:
        return None
    inside = [bool(activation_of(call)) for call in (pair.reference, pair.own)]
    if inside[0] == inside[1] or pair.reference.category not in _PRODUCTS:
        return None
    return inside.index(True)


def with_activation(pair: Pair, calls: tuple[Sequence[LayerCall], ...]) -> Pair | None:
    """Return the fused call beside the activation that the other side calls behind its product.

    None where that is written as a function: what comes in at the next layer tells then.

    Args:
        pair: of which one call is fused.
        calls: of both sides' inspections.
    """
    fused = fused_side(pair)
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
