"""Whether the answer wins again: fresh models, in processes of their own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mpcore.tools.profiling.duel import FASTER, counts, decision
from mpcore.tools.tune.again import ROUNDS, STEPS_OF_ONE, Again
from mpcore.tools.tune.contest import spread_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.tools.tune.afresh import Afresh
    from mpcore.tools.tune.bench import Bench
    from mpcore.tools.tune.contest import Contest
    from mpcore.tools.tune.log import Entry

__all__ = ["confirmed"]


def confirmed(
    bench: Bench,
    contest: Contest,
    afresh: Afresh | None,
    winner: str,
    base: str,
    before: Mapping[str, float] | None = None,
) -> str:
    """Return who is the answer: the winner where it wins again in each process.

    A winner that is a named policy meets those of ``before`` while they are too close to tell and
    steps are left; whoever is fastest over the race and all processes is the answer.

    Args:
        bench: the search's.
        contest: takes the rounds that no other process takes.
        afresh: what starts processes; None where there can be none.
        winner: of the search.
        base: the named policy that it must not be slower than.
        before: where the winner is a named policy, too: of ``base`` and of who else was near, the
            time over the winner's in the race.
    """
    again, own = Again(winner, base, before), 0
    while left := again.left():
        # one process is none
        if len(again.processes) > 1 and not contest.has_room(STEPS_OF_ONE * len(left)):
            break
        entry = _process(bench, contest, afresh, left, len(again.processes))
        again.processes.append(entry["seconds"])
        own += not entry["why"]
    found = again.decided(base) or ""
    answer = again.fastest() if before else winner
    for other in again.policies:
        if other != answer:
            told = found if (other, answer) == (base, winner) else None
            _tell(bench, again, other, answer, told, own)
    if before or (found == FASTER and again.over("float32", winner) < 1):
        return answer
    bench.log.tell("refused", policy=winner, why="it did not win again with fresh models")
    if base == "float32":
        return base
    _tell(bench, again, "float32", base, None, own)
    return base if again.over("float32", base) <= 1 else "float32"


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
            found = afresh.rounds(bench, policies, ROUNDS)
        if not found["why"]:
            contest.steps += found["steps"]
            return found
        bench.check_time()
        taken = contest.counted(lambda: {"seconds": contest.rounds(policies, ROUNDS)})
        return {"why": found["why"], **taken}

    return bench.log.once("again", about, measure)


def _tell(bench: Bench, again: Again, base: str, policy: str, found: str | None, own: int) -> None:
    """Tell what the rounds say of two policies, as one duel; ``own`` of the processes were so."""
    processes = again.ratios(base, policy)
    ratios = [ratio for one in processes for ratio in one]
    if found is None:
        found = decision(*counts(ratios), len(ratios), either=True) or ""
    fresh = {"decision": found, **spread_of(ratios), "processes": min(own, len(processes))}
    about = {"stage": "confirm", "champion": base, "challenger": policy}
    bench.log.once("duel", about, partial(dict, fresh))
