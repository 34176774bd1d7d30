"""Equal values in a max-pooling: which of them gets the gradient is the framework's choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.tools.divergence.rows import Match
    from mpcore.tools.inspection import LayerCall

__all__ = ["paired", "settled"]


def settled(leaves: Sequence[Match]) -> set[int]:
    """Return the places of poolings whose other gradient comes to nothing, and what undoes it.

    A window of zeros behind a ReLU hands its gradient to one of them or to all: the ReLU lets
    none of it through. What made the pooling's input is known by its bits; it has to hand down
    the same gradient on both sides.

    Args:
        leaves: from the last call back.
    """
    found: set[int] = set()
    for place, match in enumerate(leaves):
        if paired(match) != "pooling" or not match.parts("grad_inputs"):
            continue
        if match.parts("grad_outputs"):
            continue
        made = _made(leaves, place, match)
        if made is None:
            continue
        before = leaves[made]
        if not before.parts("grad_outputs"):
            found |= {place} if before.seen.get("grad_outputs") is not None else set()
        elif before.seen.get("grad_inputs") is not None and not before.parts("grad_inputs"):
            found |= {place, made}
    return found


def paired(match: Match) -> str:
    """Return the category of a call that both sides have; ``""`` for another."""
    call = match.pair.reference
    return call.category if call is not None and match.pair.own is not None else ""


def _made(leaves: Sequence[Match], place: int, match: Match) -> int | None:
    """Return the place of the call whose output a pooling was given, on both sides."""
    for number in range(place + 1, len(leaves)):
        earlier = leaves[number].pair
        sides = (
            (earlier.reference, match.pair.reference),
            (earlier.own, match.pair.own),
        )
        if all(_hands(before, call) for before, call in sides):
            return number
    return None


def _hands(before: LayerCall | None, call: LayerCall | None) -> bool:
    if before is None or call is None:
        return False
    given = {t.digest for t in call.inputs if t is not None}
    return any(t is not None and t.digest in given for t in before.outputs)
