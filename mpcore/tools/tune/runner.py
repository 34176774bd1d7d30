"""A search from outside: a worker, its log file, and the answer from what came of it."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.process import run_worker, thread_variables
from mpcore.errors import ExperimentError
from mpcore.tools.tune.evidence import Evidence, gather
from mpcore.tools.tune.live import DOING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.tools.tune.log import Entry
    from mpcore.tools.tune.task import Task

__all__ = ["Runner"]

_KEPT = frozenset({"screen", "culprits", "looked", "race", "duel", "again", "trained", "outer"})
"""Kinds of entries that cost something to find out."""

_LATE = 1.03  # of the budget: then a worker is ended that does not end by itself
_LEAST = 0.1  # seconds that one gets in any case


class Runner:
    """One search of an experiment file.

    Args:
        path: the file.
        task: how it is searched.
        log: file of entries, which a later search reads.
        threads: inside an operation; None for the framework's choice.
        on_event: called with each event of the worker.
        spent: seconds of the budget that are gone already.
        ending: seconds of it that the caller needs to write the answer and to end.
    """

    def __init__(
        self,
        path: Path,
        task: Task,
        log: Path,
        threads: int | None,
        on_event: Callable[[dict[str, Any]], None],
        spent: float = 0.0,
        ending: float = 0.0,
    ) -> None:
        self._path, self._task, self._log = path, task, log
        self._threads, self._on_event, self._gone = threads, on_event, spent + ending
        self._entries: list[Entry] = []
        self._key = self._error = self._phase = ""

    def run(self) -> Evidence:
        """Search to the end, or to that of the budget.

        Raises:
            ExperimentError: the search failed, or its budget ended before anything was measured.
        """
        with tempfile.TemporaryDirectory(prefix="mpcore-tune-") as folder:
            told = {
                "experiment": str(self._path.resolve()),
                "folder": folder,
                "log": str(self._log.resolve()),
                "began": time.time() - self._gone,
                "task": asdict(self._task),
            }
            ended = run_worker(
                "mpcore.tools.tune.worker",
                json.dumps(told),
                Path(folder) / "log.txt",
                time_limit=max(self._task.budget * _LATE - self._gone, _LEAST),
                on_event=self._event,
                environment=thread_variables(self._threads),
            )
        if ended.how and not ended.late:
            raise ExperimentError(self._error or ended.how)
        if ended.late:
            self._entries.append({"kind": "stopped", "why": self._spent()})
        found = self.so_far()
        if not found.policy and not found.of("checked"):
            at = DOING.get(self._phase, self._phase) or "starting framework and data"
            msg = f"{self._spent()} before anything was measured, at: {at}; no policy was written"
            if self._log.exists():
                msg += f"; a second call goes on from {self._log.name}"
            raise ExperimentError(msg)
        return found

    def _spent(self) -> str:
        return f"the budget of {self._task.budget:g} s was spent"

    def so_far(self, why: str = "") -> Evidence:
        """Return what has been found by now; ``why`` it ends there."""
        return gather([*self._entries, *([{"kind": "stopped", "why": why}] if why else [])])

    def _event(self, event: dict[str, Any]) -> None:
        self._key = event.get("key", self._key)
        self._error = event.get("error", self._error)
        self._phase = event.get("phase", self._phase)
        entry = event.get("found")
        if entry is not None:
            self._entries.append(entry)
            failed = entry["kind"] == "again" and entry["why"]  # another call may have the time
            if entry["kind"] in _KEPT and not event["known"] and not failed:
                self._keep(entry)
        self._on_event(event)

    def _keep(self, entry: Entry) -> None:
        with self._log.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"key": self._key, **entry}) + "\n")
