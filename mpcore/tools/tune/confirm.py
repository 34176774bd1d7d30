"""Whether the answer wins again: fresh models, in processes of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import exp, log
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from mpcore.tools.profiling.duel import FASTER, SLOWER, counts, decision, settled
from mpcore.tools.tune.contest import spread_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.tools.tune.afresh import Afresh
    from mpcore.tools.tune.bench import Bench
    from mpcore.tools.tune.contest import Contest
    from mpcore.tools.tune.log import Entry

__all__ = ["confirmed", "decided"]

_ROUNDS = 4
"""Of a process."""

_FEWEST, _MOST = 2, 4  # processes
_HOPE = 0.75  # of its pairs a challenger must win to go on
_WITHIN = 0.02  # of two named policies: nearer together either is the answer


@dataclass
class _Met:
    """Seconds of rounds by policy, process by process."""

    processes: list[dict[str, list[float]]] = field(default_factory=list)
    own: int = 0  # that were processes; the others fresh models in this one

    def ratios(self, base: str, policy: str) -> list[list[float]]:
        return [
            [b / a for a, b in zip(one[base], one[policy], strict=True)] for one in self.processes
        ]

    def over(self, base: str, policy: str) -> float:
        """Return a policy's time over another's: the mean of the processes' medians."""
        return exp(fmean(log(median(one)) for one in self.ratios(base, policy)))


def confirmed(
    bench: Bench,
    contest: Contest,
    afresh: Afresh | None,
    winner: str,
    champion: str,
    rival: str,
    tied: tuple[str, float] | None = None,
) -> str:
    """Return who is the answer: the winner where it wins again in each process.

    A winner that is a named policy meets its rival, and is the answer unless it is slower over all
    processes.

    Args:
        bench: the search's.
        contest: takes the rounds that no other process takes.
        afresh: what starts processes; None where there can be none.
        winner: of the search.
        champion: the best named policy.
        rival: another named policy: float32, or the next one where float32 is the champion.
        tied: a third named policy that was near to a winner that is one, with its time over the
            winner's then: whichever is faster in that and these rounds together is the answer.
    """
    base = champion if winner != champion else rival
    third = "float32" if winner != champion else tied[0] if tied else base
    policies = [*dict.fromkeys((base, winner, third))]
    met, found = _Met(), None
    while found is None:
        entry = _process(bench, contest, afresh, policies, len(met.processes))
        met.processes.append(entry["seconds"])
        met.own += not entry["why"]
        found = decided(met.ratios(base, winner), named=winner == champion)
        if len(met.processes) >= _FEWEST and not contest.has_room(entry["steps"]):
            found = found or ""
    if tied and tied[1] * met.over(winner, tied[0]) < 1:
        winner = champion = tied[0]
        found = decided(met.ratios(base, winner), named=True) or ""
    for other in policies:
        if other != winner:
            _tell(bench, met, other, winner, found if other == base else None)
    if winner == champion:
        return winner if found == FASTER or met.over(base, winner) <= 1 else rival
    if found == FASTER and met.over("float32", winner) < 1:
        return winner
    bench.log.tell("refused", policy=winner, why="it did not win again with fresh models")
    if champion == "float32":
        return champion
    _tell(bench, met, "float32", champion, None)
    return champion if met.over("float32", champion) <= 1 else "float32"


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
        if found is None and settled(ratios, _WITHIN):
            return ""
    elif found != SLOWER and (
        won < _HOPE * len(ratios) or any(median(one) >= 1 for one in processes)
    ):
        return ""
    return "" if found is None and len(processes) >= _MOST else found


def _process(
    bench: Bench, contest: Contest, afresh: Afresh | None, policies: list[str], number: int
) -> Entry:
    """Return the rounds of one more process; of fresh models here, where none could be had."""
    bench.emit(phase="duel", step=0, of=1)
    about = {"policies": policies, "process": number}

    def measure() -> dict[str, Any]:
        found: Entry = {"why": "the experiment is no file"}
        if afresh is not None:
            bench.check_time()
            found = afresh.rounds(bench, policies, _ROUNDS)
        if not found["why"]:
            contest.steps += found["steps"]
            return found
        bench.check_time()
        taken = contest.counted(lambda: {"seconds": contest.rounds(policies, _ROUNDS)})
        return {"why": found["why"], **taken}

    return bench.log.once("again", about, measure)


def _tell(bench: Bench, met: _Met, base: str, policy: str, found: str | None) -> None:
    """Tell what the rounds say of two policies, as one duel."""
    ratios = [ratio for one in met.ratios(base, policy) for ratio in one]
    if found is None:
        found = decision(*counts(ratios), len(ratios), either=True) or ""
    fresh = {"decision": found, **spread_of(ratios), "processes": met.own}
    about = {"stage": "confirm", "champion": base, "challenger": policy}
    bench.log.once("duel", about, partial(dict, fresh))
