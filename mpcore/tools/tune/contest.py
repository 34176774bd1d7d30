"""Whole steps of policies against each other, by the sign test; two live models at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from mpcore.tools.profiling.duel import FASTER, SLOWER, duel

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.tools.profiling.stepping import Run
    from mpcore.tools.tune.log import Entry, Log

__all__ = ["Contest", "beats_all", "best_named"]


@dataclass
class Contest:
    """Duels of one search.

    Attributes:
        log: what is known already is not measured again.
        make: prepares a run of a policy.
        seconds: returns how long the next duel may take.
        tell: called with what goes on.
        steps: whole steps taken so far, in this process.
    """

    log: Log
    make: Callable[[str], Run]
    seconds: Callable[[], float]
    tell: Callable[..., None]
    steps: int = 0
    _live: dict[str, Run] = field(default_factory=dict)

    def fight(self, stage: str, champion: str, challenger: str, *, either: bool = False) -> Entry:
        """Return the duel of two policies; ``ratio`` is the challenger's time over the champion's.

        Args:
            stage: what it is for; another stage has a duel of its own, with fresh models.
            champion: the policy to beat.
            challenger: the other one.
            either: whether it is asked for both ways.
        """
        about = {"stage": stage, "champion": champion, "challenger": challenger}

        def measure() -> dict[str, Any]:
            if stage == "confirm":
                self._live.clear()  # fresh models: not the ones that won
            now, then = self._run(champion), self._run(challenger)
            found = duel(
                now.seconds,
                then.seconds,
                seconds=self.seconds(),
                either=either,
                seed=len(self.log.entries),
            )
            self._live = {champion: now, challenger: then}
            if found.decision == FASTER:
                self._live.pop(champion)
            else:
                self._live.pop(challenger)
            self.steps += 6 * len(found.now)
            ratios = [b / a for a, b in zip(found.now, found.then, strict=True)]
            low, middle, high = quantiles(ratios, n=4, method="inclusive")
            return {
                "decision": found.decision,
                "pairs": len(ratios),
                "ratio": middle,
                "low": low,
                "high": high,
            }

        self.tell(phase="duel", step=0, of=1)
        return self.log.once("duel", about, measure)

    def _run(self, policy: str) -> Run:
        if policy in self._live:
            return self._live[policy]
        run = self.make(policy)
        run.warm_up()
        self.steps += 3
        return run


def best_named(contest: Contest, order: list[str]) -> str:
    """Return the policy that none of ``order`` beats; those that look fastest come first."""
    champion = order[0]
    for other in order[1:]:
        found = contest.fight("named", champion, other, either=True)
        if found["decision"] == FASTER:
            champion = other
    return champion


def beats_all(contest: Contest, winner: str, champion: str, others: list[str]) -> bool:
    """Return whether a winner wins again, with fresh models, and loses to nobody."""
    if contest.fight("confirm", champion, winner, either=True)["decision"] != FASTER:
        return False
    rest = [name for name in others if name != champion]
    return all(
        contest.fight("confirm", name, winner, either=True)["decision"] != SLOWER for name in rest
    )
