"""The last duel once more in a process of its own.

Where memory comes to lie differs from process to process, and small steps hang on it: an answer
that is right here alone is none.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.process import run_worker
from mpcore.tools.profiling.duel import SLOWER

if TYPE_CHECKING:
    from mpcore.tools.tune.bench import Bench
    from mpcore.tools.tune.log import Entry

__all__ = ["Afresh", "settled"]

_STARTS = 4  # times what it took to start this process: what must be left of the budget
_SHARE = 0.4  # of what is left, that the other process may take
_DUELS = 10.0  # seconds of them beside the start


@dataclass(frozen=True)
class Afresh:
    """Starts processes for single duels.

    Attributes:
        told: what this process was told as its task.
        start: seconds that it took to start.
    """

    told: dict[str, Any]
    start: float

    def duel(self, bench: Bench, champion: str, challenger: str) -> Entry:
        """Return the duel of two policies; what it says nothing about has ``why`` instead."""
        left = bench.seconds_left()
        if left < _STARTS * self.start + _DUELS:
            return {"why": "no time was left of the budget"}
        limit = _SHARE * left
        task = asdict(bench.task) | {"budget": limit}
        told = self.told | {"task": task, "duel": [champion, challenger], "began": time.time()}
        found: list[Entry] = []

        def keep(event: dict[str, Any]) -> None:
            if event.get("found", {}).get("kind") == "duel":
                found.append(event["found"])

        ended = run_worker(
            "mpcore.tools.tune.worker",
            json.dumps(told),
            Path("afresh.txt"),
            time_limit=limit,
            on_event=keep,
        )
        return {"why": "", **found[0]} if found else {"why": ended.how or "it told nothing"}


def settled(
    bench: Bench, afresh: Afresh | None, winner: str, rival: str, here: float | None
) -> str:
    """Return who is faster over both processes, the winner if nothing is clearly against it.

    Args:
        bench: the search's.
        afresh: what starts the other process; None where there can be none.
        winner: of the search.
        rival: the policy that would be the answer without it.
        here: time of the winner over the rival's in this process; None if it was not measured.
    """
    if afresh is None:
        return winner
    about = {"kind": "again", "champion": rival, "challenger": winner}
    bench.emit(phase="duel", step=0, of=1)
    entry = bench.log.once("again", about, lambda: afresh.duel(bench, rival, winner) | about)
    if entry["why"] or not (entry["decision"] == SLOWER or float(entry["low"]) > 1):
        return winner
    both = float(entry["ratio"]) * (1.0 if here is None else here)
    return rival if both > 1 else winner
