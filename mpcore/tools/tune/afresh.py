"""A few rounds of whole steps in a process of its own.

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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpcore.tools.tune.bench import Bench
    from mpcore.tools.tune.log import Entry

__all__ = ["Afresh"]

_STARTS = 2  # times what it took to start this process: what must be left of the budget
_LEAST = 5.0  # seconds beside the start
_SHARE = 0.5  # of what is left, that the other process may take


@dataclass(frozen=True)
class Afresh:
    """Starts processes for single rounds.

    Attributes:
        told: what this process was told as its task.
        start: seconds that it took to start.
    """

    told: dict[str, Any]
    start: float

    def rounds(
        self,
        bench: Bench,
        policies: Sequence[str],
        count: int,
        environment: Mapping[str, str] | None = None,
    ) -> Entry:
        """Return ``seconds`` of rounds by policy, and ``steps``; or ``why`` there are none."""
        left = bench.seconds_left()
        if left < _STARTS * self.start + _LEAST:
            return {"why": "no time was left of the budget"}
        limit = _SHARE * left
        task = asdict(bench.task) | {"budget": limit}
        asked = {"policies": [*policies], "count": count}
        told = self.told | {"task": task, "rounds": asked, "began": time.time()}
        found: list[Entry] = []

        def keep(event: dict[str, Any]) -> None:
            if "rounds" in event:
                found.append(event["rounds"])

        ended = run_worker(
            "mpcore.tools.tune.worker",
            json.dumps(told),
            Path("afresh.txt"),
            time_limit=limit,
            on_event=keep,
            environment=environment,
        )
        return {"why": "", **found[0]} if found else {"why": ended.how or "it told nothing"}
