"""Which of two ways to run a step is faster: a sequential sign test with a known error rate.

Shared by whoever compares whole steps: what is timed is given as two functions.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "ERROR_RATE",
    "FASTER",
    "MOST",
    "SLOWER",
    "Duel",
    "counts",
    "decision",
    "duel",
    "settled",
]

ERROR_RATE = 0.021
"""Of calling faster what gains nothing, at most, whatever noise that is as often up as down: summed
over all ways of 60 fair coins through the looks (``tests/tools/profiling/test_duel.py``)."""

FASTER, SLOWER = "faster", "slower"

FEWEST, EVERY, MOST = 8, 4, 60
"""Pairs before the first look, between looks, and at most."""

_HOPELESS = 4
"""Pairs after which a challenger that has won none of them is dropped."""

_TAKE, _DROP = 2.6, -1.0  # standard deviations of fair coins
_HOPE, _LEFT = 0.1, 2 / 3
"""Chance of being decided below which a duel is given up, if so many of its later pairs are won:
ties end after half of the pairs, and of what wins 3 of 4 pairs 1 % more stays undecided."""

_WIDTH = 1.8  # standard deviations of fair coins: the median lies inside in 92 % or more
_CLOSE = 2.5  # times what does not matter: medians nearer together are close
_MARGIN = 0.01  # relative: a pair nearer together is won by neither
_BLOCK = 2  # timed steps in a row, behind one that is not timed where the other side was before


@dataclass(frozen=True)
class Duel:
    """What was measured, pair by pair.

    Attributes:
        decision: ``FASTER`` or ``SLOWER``, of the challenger; ``""`` for undecided.
        now: seconds a step of the champion.
        then: seconds a step of the challenger, likewise.
        steps: that both have taken.
    """

    decision: str
    now: tuple[float, ...]
    then: tuple[float, ...]
    steps: int


def decision(won: int, lost: int, pairs: int, *, either: bool = False) -> str | None:
    """Return what so many pairs decide: ``FASTER``, ``SLOWER``, ``""`` to give up; None to go on.

    Args:
        won: pairs in which the challenger is faster by more than the margin.
        lost: pairs in which it is slower by more.
        pairs: of all.
        either: whether it is asked for both ways; else a challenger that loses is dropped early.
            Where most pairs are won by neither, or each wins some, it is given up early both ways.
    """
    if pairs == _HOPELESS and not won and not either:
        return ""
    if not _looks(pairs):
        return None
    away = [(2 * count - pairs) / sqrt(pairs) for count in (won, lost)]
    if away[0] > _TAKE:
        return FASTER
    if away[1] > _TAKE:
        return SLOWER
    if pairs >= MOST or (max(away) if either else away[0]) < _DROP:
        return ""
    return "" if _chance(max(won, lost) if either else won, pairs) < _HOPE else None


def _looks(pairs: int) -> bool:
    return pairs >= FEWEST and not (pairs - FEWEST) % EVERY


@cache
def _chance(won: int, pairs: int) -> float:
    """Return how probably a side with so many wins is still called faster, winning ``_LEFT``."""
    if _looks(pairs) and (2 * won - pairs) / sqrt(pairs) > _TAKE:
        return 1.0
    if pairs >= MOST:
        return 0.0
    return _LEFT * _chance(won + 1, pairs + 1) + (1 - _LEFT) * _chance(won, pairs + 1)


def counts(ratios: Sequence[float]) -> tuple[int, int]:
    """Return how many pairs a challenger wins and loses, of the ratios of its times."""
    return sum(r < 1 - _MARGIN for r in ratios), sum(r > 1 + _MARGIN for r in ratios)


def settled(ratios: Iterable[float], within: float) -> bool:
    """Return whether the side with the smaller median is surely not slower by more than ``within``.

    Only of medians that are close: what is far apart is left to the sign test, and its error rate.
    """
    ordered = sorted(ratios)
    out = max(0, int((len(ordered) - _WIDTH * sqrt(len(ordered))) / 2))
    middle, low, high = median(ordered), ordered[out], ordered[-1 - out]
    if max(middle, 1 / middle) > 1 + _CLOSE * within:
        return False
    return low * (1 + within) > 1 if middle >= 1 else high < 1 + within


def duel(
    now: Callable[[], float],
    then: Callable[[], float],
    *,
    seconds: float,
    either: bool = False,
    within: float = 0.0,
    seed: int = 0,
    decide: Callable[[Sequence[float]], str | None] | None = None,
) -> Duel:
    """Take steps both ways, in an order that is drawn anew for each pair, until it is decided.

    Args:
        now: takes a step of the champion and returns its seconds.
        then: takes one of the challenger.
        seconds: after which it is given up, from the first look on.
        either: as for ``decision``.
        within: relative difference that does not matter: a look that tells that the side with the
            smaller median is not slower by more ends it undecided.
        seed: of the order.
        decide: what the ratios so far decide, in place of the sign test; None to go on.
    """
    rng, start = random.Random(seed), time.perf_counter()
    sides: tuple[list[float], list[float]] = [], []
    steps = now, then
    taken = 0
    latest = -1
    while True:
        for side in rng.sample((0, 1), 2):
            if side != latest:  # caches hold the other model's
                steps[side]()
                taken += 1
            latest = side
            sides[side].append(sum(steps[side]() for _ in range(_BLOCK)) / _BLOCK)
            taken += _BLOCK
        ratios = [b / a for a, b in zip(*sides, strict=True)]
        if decide is not None:
            found = decide(ratios)
        else:
            found = decision(*counts(ratios), len(ratios), either=either)
            if found is None and within and _looks(len(ratios)):
                found = "" if settled(ratios, within) else None
        late = len(sides[0]) >= FEWEST and time.perf_counter() - start > seconds
        if found is not None or late:
            return Duel(found or "", tuple(sides[0]), tuple(sides[1]), taken)
