"""Whole steps of policies against each other: a race of the named ones, then duels."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from mpcore.backend.profiler import Spread
from mpcore.tools.profiling.duel import FASTER, SLOWER, duel
from mpcore.tools.tune.race import NOISY, challenge, race, rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.tools.profiling.duel import Duel
    from mpcore.tools.profiling.stepping import Run
    from mpcore.tools.tune.log import Entry, Log
    from mpcore.tools.tune.race import Race

__all__ = ["STEPS", "Contest", "spread_of", "told"]

STEPS = 250
"""Whole steps of a search, at most: then nothing more is tried."""

_TIMED = frozenset({"looked", "race", "duel", "again"})


@dataclass
class Contest:
    """Races and duels of one search.

    Attributes:
        log: what is known already is not measured again.
        make: prepares a run of a policy.
        seconds: returns how long the next duel may take.
        tell: called with what goes on.
        steps: whole steps taken so far, those of other processes included.
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
        briefly: bool = False,
    ) -> Entry:
        """Return the duel of two policies; ``ratio`` is the challenger's time over the champion's.

        Args:
            stage: what it is for; of a ``"challenge"`` the winner leads, and has to win again.
            champion: the policy to beat.
            challenger: the other one.
            either: whether it is asked for both ways.
            briefly: as for ``challenge``.
        """
        about = {"stage": stage, "champion": champion, "challenger": challenger}

        def measure() -> dict[str, Any]:
            now, then = self.run(champion), self.run(challenger)
            found = duel(
                now.seconds,
                then.seconds,
                seconds=self.seconds(),
                either=either,
                seed=len(self.log.entries),
                decide=partial(challenge, briefly=briefly) if stage == "challenge" else None,
            )
            self._live = {champion: now, challenger: then}
            del self._live[champion if found.decision == FASTER else challenger]
            self.steps += found.steps
            return told(found)

        self.tell(phase="duel", step=0, of=1)
        return self.log.once("duel", about, partial(self.counted, measure))

    def race(self, policies: Sequence[str]) -> Entry:
        """Return who leads of named policies, as ``best``, and the seconds of a step of each.

        Their models stay live.
        """

        def measure() -> dict[str, Any]:
            runs = {policy: self.run(policy) for policy in policies}
            steps = {policy: run.seconds for policy, run in runs.items()}
            found = race(steps, seconds=self.seconds(), seed=len(self.log.entries))
            self.steps += found.steps
            return _placed(found)

        self.tell(phase="duel", step=0, of=1)
        about = {"policies": list(policies)}
        entry = self.log.once("race", about, partial(self.counted, measure))
        for one in entry["duels"]:
            names = {name: one[name] for name in ("champion", "challenger")}
            self.log.once("duel", {"stage": "named", **names}, partial(dict, one))
        return entry

    def rounds(self, policies: Sequence[str], count: int) -> dict[str, list[float]]:
        """Return the seconds of so many rounds, of fresh models."""
        self._live.clear()
        runs = {policy: self.run(policy) for policy in policies}
        steps = {policy: run.seconds for policy, run in runs.items()}
        seconds, taken = rounds(steps, count, len(self.log.entries))
        self.steps += taken
        return seconds

    def keep(self, policy: str) -> None:
        """Let the live models of the other policies go."""
        self._live = {name: run for name, run in self._live.items() if name == policy}

    def has_room(self, steps: int) -> bool:
        """Return whether so many steps more may be taken, those of earlier searches counted."""
        timed = [entry for entry in self.log.entries if entry["kind"] in _TIMED]
        return sum(int(entry.get("steps", 0)) for entry in timed) + steps <= STEPS

    @property
    def is_noisy(self) -> bool:
        """Whether the rounds of a race scattered so much that a few per cent cannot be told."""
        races = [entry for entry in self.log.entries if entry["kind"] == "race"]
        return any(entry.get("noise", 0.0) > NOISY for entry in races)

    def counted(self, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what was measured, with the ``steps`` that it took."""
        before = self.steps
        found = measure()
        return found | {"steps": self.steps - before}

    def run(self, policy: str) -> Run:
        """Return a live model under a policy."""
        if policy not in self._live:
            run = self._live[policy] = self.make(policy)
            self.steps += run.warm_up()
        return self._live[policy]


def told(found: Duel) -> dict[str, Any]:
    """Return what a duel says, as plain data."""
    ratios = [b / a for a, b in zip(found.now, found.then, strict=True)]
    return {"decision": found.decision, **spread_of(ratios)}


def spread_of(ratios: Sequence[float]) -> dict[str, Any]:
    """Return the median of pairs and its quartiles, as plain data."""
    spread = Spread.of(ratios)
    return {"pairs": len(ratios), "ratio": spread.median, "low": spread.low, "high": spread.high}


def _placed(found: Race) -> dict[str, Any]:
    """Return what a race says, as plain data: duels of the best against each other one."""
    duels = []
    for policy, own in found.seconds.items():
        if policy != found.best:
            ratios = [b / a for a, b in zip(found.seconds[found.best], own, strict=False)]
            names = {"champion": found.best, "challenger": policy}
            decision = SLOWER if found.decisions[policy] == SLOWER else ""
            duels.append({**names, "decision": decision, **spread_of(ratios)})
    seconds = {found.best: Spread.of(found.seconds[found.best]).median}
    seconds |= {one["challenger"]: seconds[found.best] * one["ratio"] for one in duels}
    return {"best": found.best, "seconds": seconds, "duels": duels, "noise": found.noise}
