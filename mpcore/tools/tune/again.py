"""What rounds of fresh models decide, process by process."""

from __future__ import annotations

from math import exp, fsum, log
from statistics import median
from typing import TYPE_CHECKING

from mpcore.tools.profiling.duel import FASTER, SLOWER, counts, decision, settled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ROUNDS", "STEPS_OF_ONE", "Again", "decided", "near"]

ROUNDS = 4
"""Of a process."""

STEPS_OF_ONE = 15
"""That a policy takes in a process, at most, those that warm it up included."""

_FEWEST, _MOST = 2, 4  # processes
_MOST_NAMED = 6  # of named policies that are too close to tell
_CLOSE = 1.05  # over the champion of a race: a policy that is as near meets it again
_HOPE = 0.75  # of its pairs a challenger must win to go on
_WITHIN = 0.02  # of two named policies: nearer together either is the answer


class Again:
    """Rounds of a search's winner and those that it meets again.

    Args:
        winner: of the search.
        base: the named policy that it must not be slower than.
        before: where the winner is a named policy, too: of ``base`` and of who else was near, the
            time over the winner's in the race, which is one process more.
    """

    def __init__(self, winner: str, base: str, before: Mapping[str, float] | None = None) -> None:
        self.winner, self.base, self._before = winner, base, dict(before or {})
        self.processes: list[Mapping[str, Sequence[float]]] = []
        self._named = before is not None

    @property
    def policies(self) -> list[str]:
        """All that meet, the winner among them."""
        others = self._before if self._named else ("float32",)
        return [*dict.fromkeys((self.base, self.winner, *others))]

    def left(self) -> list[str]:
        """Return whose rounds another process should take; none where all is decided."""
        if len(self.processes) < (_FEWEST if self._named else 1):
            return self.policies
        against = self._before if self._named else (self.base,)
        left = [other for other in against if self.decided(other) is None]
        if not left or not self._named:
            return self.policies if left else []
        return [self.winner, *left]

    def decided(self, base: str) -> str | None:
        """Return what the rounds decide of the winner over another policy; None to go on."""
        return decided(self.ratios(base, self.winner), named=self._named)

    def ratios(self, base: str, policy: str) -> list[list[float]]:
        """Return a policy's times over another's, of each process that took both."""
        return [
            [b / a for a, b in zip(one[base], one[policy], strict=True)]
            for one in self.processes
            if base in one and policy in one
        ]

    def over(self, base: str, policy: str) -> float:
        """Return a policy's time over another's: the mean of the processes' medians."""
        each = [median(one) for one in self.ratios(base, policy)]
        if policy == self.winner and base in self._before:
            each.append(1 / self._before[base])
        return exp(fsum(map(log, each)) / len(each))

    def fastest(self) -> str:
        """Return who is fastest of named policies."""
        over = {other: self.over(other, self.winner) for other in self._before}
        slowest = max(over, key=lambda other: over[other])
        return slowest if over[slowest] > 1 else self.winner


def near(champion: str, rival: str, times: Mapping[str, float]) -> dict[str, float]:
    """Return the times of the rival, and of who is near, over the champion's of a race."""
    over = {name: seconds / times[champion] for name, seconds in times.items()}
    nearest = min((name for name in over if name != champion), key=lambda name: over[name])
    names = {rival, nearest} if over[nearest] < _CLOSE else {rival}
    return {name: over[name] for name in sorted(names)}


def decided(processes: Sequence[Sequence[float]], *, named: bool) -> str | None:
    """Return what the ratios of a challenger, process by process, decide; None to go on.

    Args:
        processes: four ratios each.
        named: whether both are named policies, of which either is the answer if they are close;
            else the challenger must win in each process.
    """
    ratios = [ratio for one in processes for ratio in one]
    won, lost = counts(ratios)
    if len(processes) < _FEWEST:
        return None if named or won else ""
    found = decision(won, lost, len(ratios), either=True)
    if named:
        if found in (FASTER, SLOWER):
            return found
        return "" if settled(ratios, _WITHIN) or len(processes) >= _MOST_NAMED else None
    if found != SLOWER and (
        won < _HOPE * len(ratios) or any(median(one) >= 1 for one in processes)
    ):
        return ""
    return "" if found is None and len(processes) >= _MOST else found
