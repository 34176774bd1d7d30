"""Who meets the best named policy: what kernels promise, most first, within a number of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mpcore.policy.policy import Policy
from mpcore.tools.profiling.duel import FASTER
from mpcore.tools.tune.accuracy import FAILURES, Accuracy, line_of
from mpcore.tools.tune.again import STEPS_OF_ONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.tools.tune.bench import Bench
    from mpcore.tools.tune.contest import Contest
    from mpcore.tools.tune.log import Entry

__all__ = ["Challengers", "Promise"]

_CONFIRMED = 2 * STEPS_OF_ONE  # of each policy of the confirmation, in two processes
_LONG, _DUEL, _DROPPED = 51, 27, 15  # steps of a challenge, of a brief one, of one that is dropped

_GAIN = 0.01  # a promise below that is not worth a duel
_HIDDEN = 0.03  # nor one below that where rounds scatter: a duel could not tell it
_OFF = 0.15  # of what kernels alone promise to save, by which whole steps may save more
_DROPS = 3  # challengers in a row that do not win, after which the rest is left
_AS_FAST = 1.05  # over the winner by op: then no other is looked for by layer


class Promise(NamedTuple):
    """A policy of which kernels alone promise something.

    Attributes:
        hoped: seconds of a step, at best.
        seconds: of a step, as promised.
        policy: it.
        base: the named policy that it is made of.
        rule: what it adds.
        why: the reason.
    """

    hoped: float
    seconds: float
    policy: str
    base: str
    rule: str
    why: str


class Challengers:
    """Challenges of one search.

    Args:
        bench: the search's.
        contest: where they are met.
        accuracy: what they must pass before.
        times: seconds of a step, of each named policy.
        looked: what the kernels of named policies promise.
    """

    def __init__(
        self,
        bench: Bench,
        contest: Contest,
        accuracy: Accuracy,
        times: Mapping[str, float],
        looked: Mapping[str, Entry],
    ) -> None:
        self._bench, self._log, self._contest = bench, bench.log, contest
        self._accuracy, self._times = accuracy, times
        self._left, self._confirm = bench.task.tries, 0
        self._tried = {bench.key(name) for name in times}
        promises = [
            Promise(times[base] - (1 + _OFF) * saves, times[base] - saves, policy, base, rule, why)
            for base, seen in looked.items()
            for saves, policy, rule, why in seen["promises"]
        ]
        # Of alike ones those stay first that come first in the model: it is what hands on a dtype.
        self._promises = sorted(promises, key=lambda one: one.hoped)

    def champion(self, champion: str) -> str:
        """Return who is left of a named champion and those that promise something."""
        best = self._times[champion]
        self._confirm = _CONFIRMED * (2 if champion == "float32" else 3)
        least = _HIDDEN if self._contest.is_noisy else _GAIN
        worth = [one for one in self._promises if one.hoped < best * (1 - least)]
        worth = [one for one in worth if self._is_new(one.policy)]
        for one in worth:
            self._tell(one)
        drops = 0
        for one in worth:
            if drops >= _DROPS or not self._has_room():
                break
            found = self._meet(champion, one.policy)
            if found is not None and found["decision"] == FASTER:
                best *= float(found["ratio"])
                return self._added_to(str(found["challenger"]), one, best)
            drops += found is not None
        return champion

    def _added_to(self, champion: str, won: Promise, best: float) -> str:
        """Return a winner, with the next rule of its base on top if that wins, too."""
        self._log.tell("winner", policy=champion, stage="champion")
        base = champion.partition(";")[0]
        for one in self._promises:
            saves = self._times[one.base] - one.seconds
            policy = f"{champion}; {one.rule}"
            if one.base != base or one.rule == one.policy or saves < _GAIN * best:
                continue
            if not self._is_new(policy) or not self._has_room():
                continue
            why = f"{won.why}; {one.rule}: {one.why}"
            self._tell(Promise(best - saves, best - saves, policy, base, won.rule, why))
            found = self._meet(champion, policy)
            if found is not None and found["decision"] == FASTER:
                champion = str(found["challenger"])
                self._log.tell("winner", policy=champion, stage="champion")
            break
        if Policy.parse(champion).by == "op":
            self._look_by_layer(champion)
        return champion

    def _look_by_layer(self, champion: str) -> None:
        """Measure what is as fast by layer, for frameworks without rules by op."""
        told = [e["policy"] for e in self._log.entries if e["kind"] == "promise"]
        by_layer = [policy for policy in told if Policy.parse(policy).by == "layer"]
        for policy in by_layer[:_DROPS]:
            found = self._meet(champion, policy) if self._has_room(_DROPPED) else None
            if found is not None and float(found["ratio"]) < _AS_FAST:
                break

    def _is_new(self, policy: str) -> bool:
        """Return whether no policy of the same plan was seen before."""
        key = self._bench.key(policy)
        if key in self._tried:
            return False
        self._tried.add(key)
        return True

    def _has_room(self, steps: int = _DUEL) -> bool:
        return self._left > 0 and self._contest.has_room(steps + self._confirm)

    def _tell(self, one: Promise) -> None:
        ratio = one.seconds / self._times["float32"]
        self._log.tell("promise", policy=one.policy, rule=one.rule, why=one.why, ratio=ratio)

    def _meet(self, champion: str, policy: str) -> Entry | None:
        """Return the duel of a challenger; None where it does not train or run."""
        full = self._accuracy.screened(policy)
        if not full:
            return None
        try:
            briefly = self._contest.is_noisy or not self._has_room(_LONG)
            return self._contest.fight("challenge", champion, full, briefly=briefly)
        except FAILURES as exc:
            self._log.tell("refused", policy=full, why=line_of(exc))
            return None
        finally:
            self._left -= 1
