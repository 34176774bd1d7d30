"""Which parts of a model must stay full: delta debugging on the error of one step."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["MOST", "Culprits", "find_culprits"]

MOST = 60
"""Evaluations at most; each is one step of the model."""

_SINGLES = 7  # units that are run low alone, for the model's own ordinary rounding
_PLAIN = 10.0  # beyond that many times what others have, one unit alone is a culprit
_ROUNDINGS = 4.0
_FACTOR = 3.0  # beyond that many times what ordinary rounding adds up to, a set holds a culprit


@dataclass(frozen=True)
class Culprits:
    """What was found.

    Attributes:
        units: that must stay full, in the model's order.
        evaluations: steps that were run for it.
        whole: whether what is left low has no more than ordinary rounding; False where the
            evaluations ran out, or every unit is to blame.
    """

    units: tuple[str, ...]
    evaluations: int
    whole: bool


def find_culprits(
    units: Sequence[str],
    error: Callable[[frozenset[str]], float],
    *,
    rounding: float = 0.0,
    seed: int = 0,
) -> Culprits:
    """Return the units whose 16 bits do more harm than rounding does.

    A set of units is bad if its error is beyond three times the ordinary one of its size, which is
    the median of single units times the root of their number; and beyond four roundings of the
    format, as the first layer and the last may have more than others and harm nothing. A bad set is
    halved until one unit is left; that one is kept full, and the rest tested again. In the end each
    that was found is given back for a test: one that was only bad beside another one is lowered
    again.

    Args:
        units: all that may be lowered, in the model's order.
        error: of one step in which those units alone are low, relative; inf where it is not
            finite.
        rounding: relative, of one number in the 16-bit format.
        seed: of the units that are tried alone.
    """
    search = _Search(units, error, rounding, random.Random(seed))
    found, whole = search.all_bad()
    kept = search.needed(found) if whole else found
    return Culprits(tuple(u for u in units if u in kept), search.evaluations, whole)


class _SpentError(Exception):
    """All evaluations were made."""


class _Search:
    def __init__(
        self,
        units: Sequence[str],
        error: Callable[[frozenset[str]], float],
        rounding: float,
        rng: random.Random,
    ) -> None:
        self._units, self._error = list(units), error
        self._least = _ROUNDINGS * rounding
        self._known: dict[frozenset[str], float] = {}
        self.evaluations = 0
        tried = rng.sample(self._units, min(_SINGLES, len(self._units)))
        self._alone = {unit: self._run(frozenset((unit,))) for unit in tried}
        self._ordinary = _ordinary(self._alone.values())

    def _run(self, low: frozenset[str]) -> float:
        if low not in self._known:
            if self.evaluations >= MOST:
                raise _SpentError
            self.evaluations += 1
            value = self._error(low)
            self._known[low] = value if isfinite(value) else inf
        return self._known[low]

    def _is_bad(self, low: Sequence[str]) -> bool:
        allowed = max(_FACTOR * self._ordinary * sqrt(len(low)), self._least)
        return bool(low) and self._run(frozenset(low)) > allowed

    def all_bad(self) -> tuple[list[str], bool]:
        """Return units without which the rest is ordinary; False where that was not reached."""
        found = [
            unit
            for unit, error in self._alone.items()
            if error > max(_PLAIN * self._ordinary, self._least)
        ]
        left = [unit for unit in self._units if unit not in found]
        try:
            while self._is_bad(left):
                one = self._one(left)
                found.append(one)
                left.remove(one)
        except _SpentError:
            return found, False
        return found, len(found) < len(self._units)

    def _one(self, bad: Sequence[str]) -> str:
        while len(bad) > 1:
            half = len(bad) // 2
            # the other half is bad without a test
            bad = bad[:half] if self._is_bad(bad[:half]) else bad[half:]
        return bad[0]

    def needed(self, found: Sequence[str]) -> list[str]:
        """Return those of ``found`` that cannot be given back."""
        kept = list(found)
        try:
            for one in found:
                fewer = [unit for unit in kept if unit != one]
                if not self._is_bad([unit for unit in self._units if unit not in fewer]):
                    kept = fewer
        except _SpentError:
            pass  # what was not tried stays full
        return kept


def _ordinary(errors: Iterable[float]) -> float:
    """Return the median of those that are not far beyond the smallest."""
    values = sorted(value for value in errors if 0 < value < inf)
    if not values:
        return 0.0
    first = values[len(values) // 4]
    return median(value for value in values if value <= _PLAIN * first)
