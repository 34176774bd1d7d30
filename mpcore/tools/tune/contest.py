"""Whole steps of policies against each other, by the sign test; two live models at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpcore.backend.profiler import Spread
from mpcore.tools.profiling.duel import FASTER, SLOWER, duel

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.tools.profiling.duel import Duel
    from mpcore.tools.profiling.stepping import Run
    from mpcore.tools.tune.log import Entry, Log

__all__ = ["Contest", "beats_all", "best_named", "smaller", "told"]

_CLOSE = 0.02  # of two named policies: nearer together either is the answer


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

    def fight(
        self,
        stage: str,
        champion: str,
        challenger: str,
        *,
        either: bool = False,
        within: float = 0.0,
    ) -> Entry:
        """Return the duel of two policies; ``ratio`` is the challenger's time over the champion's.

        Args:
            stage: what it is for; another stage has a duel of its own, with fresh models.
            champion: the policy to beat.
            challenger: the other one.
            either: whether it is asked for both ways.
            within: relative difference that does not matter.
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
                within=within,
                seed=len(self.log.entries),
            )
            self._live = {champion: now, challenger: then}
            if found.decision == FASTER:
                self._live.pop(champion)
            else:
                self._live.pop(challenger)
            self.steps += found.steps
            return told(found)

        self.tell(phase="duel", step=0, of=1)
        return self.log.once("duel", about, measure)

    def lost(self, champion: str, other: str) -> bool:
        """Return whether a policy is known to be slower than another."""
        names = {(champion, other): SLOWER, (other, champion): FASTER}
        return any(
            e["kind"] == "duel" and names.get((e["champion"], e["challenger"])) == e["decision"]
            for e in self.log.entries
        )

    def _run(self, policy: str) -> Run:
        if policy in self._live:
            return self._live[policy]
        run = self.make(policy)
        run.warm_up()
        self.steps += 3
        return run


def told(found: Duel) -> dict[str, Any]:
    """Return what a duel says, as plain data."""
    spread = Spread.of([b / a for a, b in zip(found.now, found.then, strict=True)])
    ends = {"ratio": spread.median, "low": spread.low, "high": spread.high}
    return {"decision": found.decision, "pairs": len(found.now), **ends}


def best_named(contest: Contest, order: list[str]) -> str:
    """Return the policy that none of ``order`` beats; those that look fastest come first.

    Float32 takes part only where it looks fastest: whoever wins has to confirm against it anyway.
    """
    champion = order[0]
    for other in order[1:]:
        if other == "float32":
            continue
        champion = smaller(contest, "named", champion, other)
    return champion


def smaller(contest: Contest, stage: str, champion: str, other: str) -> str:
    """Return the faster of two named policies.

    Of two that cannot be told apart it is the one with the smaller median: nothing is claimed by
    that, and a few per cent that no duel decides are not given away.
    """
    found = contest.fight(stage, champion, other, either=True, within=_CLOSE)
    wins = found["decision"] == FASTER or (not found["decision"] and found["ratio"] < 1)
    return other if wins else champion


def beats_all(contest: Contest, winner: str, champion: str, others: list[str]) -> bool:
    """Return whether a winner wins again, with fresh models, and loses to nobody.

    Of the others those are left out that lost to the champion; not float32, which is told.
    """
    if contest.fight("confirm", champion, winner, either=True)["decision"] != FASTER:
        return False
    rest = [name for name in others if name == "float32" or not contest.lost(champion, name)]
    return all(
        contest.fight("confirm", name, winner, either=True)["decision"] != SLOWER
        for name in rest
        if name != champion
    )
