"""One worker of a command: a process that runs an experiment, watched to its end."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.process import run_worker, thread_variables

if TYPE_CHECKING:
    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.experiment.progress import Display

__all__ = ["work"]


def work(
    module: str,
    experiment: Experiment,
    name: str,
    label: str,
    task: dict[str, Any],
    display: Display,
    *,
    time_limit: float,
    steps: int = 1,
    threads: int | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """Run one worker; return what it told besides its progress, and why it failed, if it did.

    Args:
        module: what ``python -m`` starts.
        experiment: what it runs.
        name: the backend.
        label: the policy, for the display.
        task: what it is told beside the file, the backend and a folder of its own.
        display: shows events that have a ``phase``.
        time_limit: seconds after which it is killed.
        steps: how many it is going to take, as far as known.
        threads: inside an operation; None leaves it to the framework.
    """
    events: list[dict[str, Any]] = []

    def told(event: dict[str, Any]) -> None:
        if "phase" in event:
            display(name, label, event)
        else:
            events.append(event)

    display(name, label, {"phase": "start", "step": 0, "of": steps})
    with tempfile.TemporaryDirectory(prefix="mpcore-work-") as folder:
        file = str(experiment.path.resolve())
        ended = run_worker(
            module,
            json.dumps({"experiment": file, "backend": name, "folder": folder, **task}),
            Path(folder) / "log.txt",
            time_limit=time_limit,
            on_event=told,
            environment=thread_variables(threads),
        )
    return events, next((event["error"] for event in events if "error" in event), ended.how)
