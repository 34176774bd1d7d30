"""Which setting makes the own output of a layer from its input, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mpcore.tools.divergence.fused import activation_of, fused_side, with_activation
from mpcore.tools.divergence.hypotheses.sides import Hint, Side, apart, explains, side_of
from mpcore.tools.divergence.hypotheses.tried import FORMULAS, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpcore.tools.divergence.root_cause import Case
    from mpcore.tools.divergence.rows import Match
    from mpcore.tools.inspection import LayerCall

__all__ = ["Hint", "hints", "hints_between"]


def hints(case: Case, match: Match) -> list[Hint]:
    """Return what explains the own output of an aligned call, the best first."""
    calls = case.whole(match)
    if calls is None:
        return []
    if fused_side(match.pair, _all(case)) is not None:
        return list(_activation_behind(case, match))
    arrays = case.arrays(match)
    sides = [side_of(call, held) for call, held in zip(calls, arrays, strict=True)]
    if sides[0] is None or sides[1] is None or sides[0].x.shape != sides[1].x.shape:
        return []  # a part of the batch, or another layout: no setting of the layer
    try:
        with np.errstate(all="ignore"):
            return list(_found(sides[0], sides[1]))
    except (ValueError, IndexError, np.linalg.LinAlgError):
        return []  # a layer that is not what its category says: no formula fits it


def _all(case: Case) -> tuple[Sequence[LayerCall], Sequence[LayerCall]]:
    return case.reference.inspection.calls, case.own.inspection.calls


def _activation_behind(case: Case, match: Match) -> Iterator[Hint]:
    """Yield what one side does behind a product, where the other runs its activation inside."""
    fused = fused_side(match.pair, _all(case))
    if fused is None:
        return
    call = match.pair.own if fused else match.pair.reference
    inside = activation_of(call, _all(case)[fused])
    name = _behind(case, match, 1 - fused)
    if not name or name == inside:
        return
    who, other = ("this side", "the reference") if fused else ("the reference", "this side")
    sentence = f"{match.path} runs {inside} inside in {who}; behind it {other} runs {name}"
    yield Hint("activation variant", sentence, f"use {name if fused else inside}")


def _behind(case: Case, match: Match, side: int) -> str:
    """Return the activation that one side runs behind a product: as a layer, or as a function."""
    pair = with_activation(match.pair, _all(case))
    layer = (pair.own if side else pair.reference) if pair is not None else None
    if layer is not None:
        seen = side_of(layer, {})
        return name_of(seen, 1.0) if seen is not None else layer.type.lower()
    place = next((i for i, m in enumerate(case.table.matches) if m is match), -1)
    later = (m for m in case.table.matches[place + 1 :] if not m.container and m.seen)
    after = next((m for m in later if m.parts("inputs")), None)
    both = case.whole(match), case.whole(after) if after is not None else None
    if both[0] is None or both[1] is None:
        return ""
    sides = side_of(both[0][side], {}), side_of(both[1][side], {})
    if sides[0] is None or sides[1] is None or sides[0].y.shape != sides[1].x.shape:
        return ""
    return name_of(replace(sides[0], x=sides[0].y, y=sides[1].x), 1.0)


def hints_between(case: Case, home: Match, match: Match) -> list[Hint]:
    """Return what code between layers made of the input of one, otherwise than the reference.

    Args:
        case: the comparison.
        home: call of the container whose code it is.
        match: call of the layer that was given something else.
    """
    inside, around = case.whole(match), case.whole(home)
    if inside is None or around is None:
        return []
    sides = [side_of(call, {}) for call in (*inside, around[0])]
    if sides[0] is None or sides[1] is None or sides[2] is None:
        return []
    given = [replace(side, y=side.x, x=sides[2].x) for side in sides[:2] if side is not None]
    if given[0].y.shape != given[1].y.shape:
        return []
    with np.errstate(all="ignore"):
        return list(_simple(given[0], given[1], apart(given[1].y, given[0].y)))


def _found(reference: Side, own: Side) -> Iterator[Hint]:
    away = apart(own.y, reference.y)
    # A layer written by hand has no category: that of its partner says what it stands for.
    kinds = dict.fromkeys((own.call.category, reference.call.category))
    for formula in (f for kind in kinds for f in FORMULAS.get(kind, ())):
        yield from formula(reference, own, away)
    yield from _simple(reference, own, away)


def _simple(reference: Side, own: Side, away: float) -> Iterator[Hint]:
    """Yield a factor, or the input added or not."""
    if own.y.shape != reference.y.shape:
        return
    if own.call.category == "conv_transpose" or own.y.size == 0:
        return
    norm = float(np.square(reference.y).sum())
    factor = float((own.y * reference.y).sum()) / norm if norm else 0.0
    if factor and abs(factor - 1) > 1e-3 and explains(factor * reference.y, own, away):
        yield Hint(
            "other setting",
            f"its output is {factor:.4g} times that of the reference",
            f"divide by {factor:.4g}, or look for a scale that only one side has",
        )
    yield from _dropped(reference, own)
    if own.x.shape == own.y.shape:
        for sign, words in (
            (-1, "lacks its input, which the reference adds"),
            (1, "has its input added"),
        ):
            if explains(reference.y + sign * own.x, own, away):
                yield Hint("other setting", f"its output {words}", "make the shortcut the same")


def _dropped(reference: Side, own: Side) -> Iterator[Hint]:
    """Yield zeros that only one side has, the rest being made up for: dropout."""
    for first, second, words in (
        (reference, own, "where the reference has others"),
        (own, reference, "in the reference, and others here"),
    ):
        live = first.y != 0
        zeros = live & (second.y == 0)
        share = float(zeros.sum()) / max(int(live.sum()), 1)
        rest = live & ~zeros
        if not 0.005 < share < 0.995 or not rest.any():
            continue
        wanted = first.y[rest]
        factor = float((second.y[rest] * wanted).sum() / np.square(wanted).sum())
        if factor > 1.001 and apart(factor * wanted, second.y[rest]) < 0.02:
            yield Hint(
                "random state",
                f"{share:.0%} of its output is zero {words}, the rest {factor:.3g} times as large",
                "drop with the same rate on both sides, or not at all",
            )
            return
