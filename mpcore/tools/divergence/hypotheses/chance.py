"""Random numbers that only one side draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.tools.divergence.distance import between
from mpcore.tools.divergence.root_cause import RootCause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.divergence.root_cause import Case
    from mpcore.tools.divergence.rows import Match

__all__ = ["from_chance", "from_lone"]

_GLUE = ("reshape", "pooling", "container", "other", "softmax", "activation")
"""Categories of layers without weights that others write as functions."""


def from_chance(case: Case, match: Match) -> Iterator[RootCause]:
    """Yield that one side's output depends on random numbers and the other's does not."""
    pair = match.pair
    random = [case.tolerances.random(place, side) for side, place in enumerate(pair.places)]
    if random[0] == random[1]:
        return
    sides = (case.reference, case.own)
    moved = [_moved(side, place) for side, place in zip(sides, pair.places, strict=True)]
    which = ("this side", "the reference") if random[1] else ("the reference", "this side")
    own = pair.own or pair.reference
    yield RootCause(
        "random state",
        match.path,
        own.path if own else "",
        "forward",
        (
            f"with other random numbers the output of {which[0]} moves by {max(moved):.2g}, "
            f"that of {which[1]} by {min(moved):.2g}",
        ),
        "turn dropout off on this side, or give it the same rate and mode"
        if random[1]
        else "turn dropout on on this side, with the rate of the reference",
        "sure",
    )


def _moved(side: Evidence, place: int) -> float:
    if side.reseeded is None or place < 0:
        return 0.0
    calls = side.inspection.calls[place], side.reseeded.calls[place]
    seen = between(calls[0].outputs, calls[1].outputs, (1.0, 1.0))
    return seen[0].relative if seen else 0.0


def from_lone(match: Match) -> Iterator[RootCause]:
    """Yield a layer that only one side has."""
    pair = match.pair
    if pair.reference is not None and pair.own is not None:
        return
    call = pair.reference or pair.own
    if call is None:
        return
    here = pair.reference is None
    who, other = ("this side", "the reference") if here else ("the reference", "this side")
    fix, sure = f"{'leave out' if here else 'add'} {call.path}", "likely"
    if call.category in _GLUE:
        # What one side writes as a layer the other may do in its code: it is not to be deleted.
        fix = f"look whether the code of {other} does there what {call.path} does"
        sure = "possible"
    yield RootCause(
        "random state" if call.category == "dropout" else "other setting",
        match.path,
        pair.own.path if pair.own else "",
        "forward",
        (f"only {who} calls {call.path}, a {call.type}",),
        fix,
        sure,
    )
