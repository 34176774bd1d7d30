"""Several policies' steps in turns: who can be left out early, and who leads."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from itertools import combinations
from math import log
from statistics import fmean, median
from typing import TYPE_CHECKING

from mpcore.tools.profiling.duel import FASTER, SLOWER, counts, decision, settled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["FAR", "FEWEST", "NOISY", "Race", "challenge", "race", "rounds"]

FEWEST = 4
"""Rounds before the first look."""

FAR = 2.0
"""Times the fastest: so far behind, a policy needs no second look."""

NOISY = 0.04
"""Scatter of a round's ratio, as a standard deviation, that hides a few per cent."""

_NORMAL = 1.48  # standard deviations of normal numbers in a median deviation
_EVERY = 2  # rounds between looks
_MOST, _STEPS = 8, 90  # rounds, and steps of all: who is left then is told by the median
_FAR_ROUNDS = 2  # of a race, first: who is far behind in each is left out
_CLEAR = 0.10  # slower in all of four rounds, and by so much on the median: left out
_WITHIN = 0.02  # of two that are nearer together either may lead
_BLOCK = 2  # timed steps in a row, behind one that is not timed where another was before

_LEADS = 0.05  # a challenger that wins its first four pairs by so much leads
_FIRST, _SECOND = 2, 4  # pairs of a challenger at its first looks
_HOPE = 0.75  # of its pairs a challenger must win to go on
_PAIRS, _WON = 8, 7  # of a challenger at most, and those that it must have won by then


@dataclass(frozen=True)
class Race:
    """What was measured, round by round.

    Attributes:
        best: who leads in the end.
        seconds: of a step by name, a round each; who was left out early has fewer.
        decisions: by name, whether it is ``SLOWER`` than the best; ``""`` for too close to tell.
        noise: standard deviation of the ratio of two policies in a round.
        steps: that all have taken.
    """

    best: str
    seconds: Mapping[str, Sequence[float]]
    decisions: Mapping[str, str]
    noise: float
    steps: int


class _Blocks:
    """Takes blocks of steps, in an order that is drawn anew for each round."""

    def __init__(self, steps: Mapping[str, Callable[[], float]], seed: int) -> None:
        self._steps, self._rng, self._latest = steps, random.Random(seed), ""
        self.seconds: dict[str, list[float]] = {name: [] for name in steps}
        self.taken = 0

    def round(self, names: Sequence[str]) -> None:
        for name in self._rng.sample(list(names), len(names)):
            step = self._steps[name]
            if name != self._latest:  # caches hold another model's
                step()
                self.taken += 1
            self._latest = name
            self.seconds[name].append(sum(step() for _ in range(_BLOCK)) / _BLOCK)
            self.taken += _BLOCK


def rounds(
    steps: Mapping[str, Callable[[], float]], count: int, seed: int
) -> tuple[dict[str, list[float]], int]:
    """Return the seconds of so many rounds, by name, and the steps that they took."""
    blocks = _Blocks(steps, seed)
    for _ in range(count):
        blocks.round([*steps])
    return blocks.seconds, blocks.taken


def race(steps: Mapping[str, Callable[[], float]], *, seconds: float, seed: int = 0) -> Race:
    """Take rounds of all until one is left, or nobody left is surely slower than the best.

    Left out is who took twice the time of the fastest in the first two rounds (where 16 bits are
    emulated it is ten times, and rounds are dear); who lost each of the first four, by a tenth on
    the median; who loses by the sign test; and who is so close that the leader is surely not slower
    by more than 2 %.

    Args:
        steps: by name, takes a step and returns its seconds.
        seconds: after which it ends, from the first look on.
        seed: of the order.
    """
    blocks, left, start = _Blocks(steps, seed), [*steps], time.perf_counter()
    decisions = dict.fromkeys(steps, "")
    best, noise = left[0], 0.0
    while len(left) > 1:
        blocks.round(left)
        taken = len(blocks.seconds[left[0]])
        if taken == _FAR_ROUNDS:
            far = _far(blocks.seconds)
            decisions |= dict.fromkeys(far, SLOWER)
            left = [name for name in left if name not in far]
            best = left[0]
        if taken < FEWEST or taken % _EVERY:
            continue
        noise = noise or _scatter(blocks.seconds)
        late = time.perf_counter() - start > seconds
        late = late or taken >= _MOST or blocks.taken + _EVERY * len(left) * (_BLOCK + 1) > _STEPS
        best = _leader(blocks.seconds, left)
        told = {name: _told(blocks.seconds, best, name) for name in left if name != best}
        decisions |= {name: found for name, found in told.items() if found}
        left = [name for name in left if name == best or (told[name] is None and not late)]
    decisions[best] = ""
    return Race(best, blocks.seconds, decisions, noise or _scatter(blocks.seconds), blocks.taken)


def _far(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """Return who took far longer than the fastest in each round."""
    least = [min(one) for one in zip(*seconds.values(), strict=True)]
    return [
        name
        for name, own in seconds.items()
        if all(b > FAR * a for a, b in zip(least, own, strict=True))
    ]


def _scatter(seconds: Mapping[str, Sequence[float]]) -> float:
    """Return the standard deviation of the ratio of two, of the first rounds; stalls left out."""
    away = []
    for one, other in combinations(seconds.values(), 2):
        ratios = [log(b / a) for a, b in zip(one, other, strict=False)]
        away += [abs(ratio - median(ratios)) for ratio in ratios]
    return _NORMAL * median(away)


def _leader(seconds: Mapping[str, Sequence[float]], left: Sequence[str]) -> str:
    """Return who has the smallest median over the mean of its round: the machine drifts."""
    means = [fmean(one) for one in zip(*(seconds[name] for name in left), strict=True)]
    over = {
        name: median(own / mean for own, mean in zip(seconds[name], means, strict=True))
        for name in left
    }
    return min(left, key=lambda name: over[name])


def _told(seconds: Mapping[str, Sequence[float]], best: str, other: str) -> str | None:
    """Return how one that is left out stands to the leader; None to go on."""
    ratios = [b / a for a, b in zip(seconds[best], seconds[other], strict=True)]
    won, lost = counts(ratios)
    if lost == len(ratios) and median(ratios) > 1 + _CLEAR:
        return SLOWER
    if decision(won, lost, len(ratios), either=True) == SLOWER:
        return SLOWER
    return "" if len(ratios) > FEWEST and settled(ratios, _WITHIN) else None


def challenge(ratios: Sequence[float], *, briefly: bool = False) -> str | None:
    """Return whether a challenger leads, after so many pairs; ``""`` for no, None to go on.

    That is no answer yet: who leads must win again, with fresh models, by the sign test.

    Args:
        ratios: its time over the champion's, pair by pair.
        briefly: whether four pairs must do: no more fit in, or noise hides what is below 5 %.
    """
    pairs, (won, _) = len(ratios), counts(ratios)
    if pairs == _FIRST:
        return None if won else ""
    if pairs == _SECOND and won == pairs and median(ratios) < 1 - _LEADS:
        return FASTER
    if pairs == _SECOND and (briefly or won < _HOPE * pairs):
        return ""
    if pairs < _PAIRS:
        return None
    return FASTER if won >= _WON else ""
