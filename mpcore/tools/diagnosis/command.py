"""The command ``mpcore diagnose``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mpcore._lib.process import ended_cleanly, run_worker
from mpcore.errors import CheckpointError, ExperimentError
from mpcore.tools.diagnosis.read import read_record
from mpcore.tools.diagnosis.record import PostMortem
from mpcore.tools.experiment.options import load, read_policies
from mpcore.tools.experiment.progress import Display, say

__all__ = ["diagnose"]


def diagnose(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A comparison's folder or report.json, a file of PostMortem.save, a monitor's "
            "JSON Lines, or an EXPERIMENT.py (it is run: trust it first).",
            show_default=False,
        ),
    ],
    backend: Annotated[
        str,
        typer.Option(
            help="EXPERIMENT.py: framework. Default: the first one that the file builds for.",
            show_default=False,
        ),
    ] = "",
    policy: Annotated[
        str, typer.Option(help="EXPERIMENT.py: name or text of the policy.")
    ] = "mixed_float16",
    steps: Annotated[
        int,
        typer.Option(min=1, max=1_000_000, help="EXPERIMENT.py: steps to train, at most."),
    ] = 100,
    time_limit: Annotated[
        float, typer.Option(min=1, max=1e6, help="EXPERIMENT.py: seconds that may take.")
    ] = 600,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say why steps were skipped: where it overflowed first, by how much, and what cures it.

    An EXPERIMENT.py is trained until the first skipped step, which is then run again under the
    policy, in float32, and under each cure that is tried. The other kinds of RUN are read.

    Exit codes: 0 nothing overflowed, 1 something did, or the run failed, 2 the input was wrong.

    Example: mpcore diagnose examples/image_cnn/experiment.py --policy mixed_float16

    Example: mpcore diagnose report/

    Example: mpcore diagnose steps.jsonl
    """
    if not time_limit <= 1e6:  # nan passes for a number in range with older typer
        msg = f"`--time-limit` must be a number of seconds, got {time_limit}"
        raise ExperimentError(msg)
    console = Console()
    if run.suffix == ".py":
        shown = Console(stderr=True) if as_json else console
        answer = _trained(run, backend, policy, steps, time_limit, shown)
    else:
        if backend:
            msg = f"`--backend` is for an EXPERIMENT.py, got it with {run}"
            raise ExperimentError(msg)
        try:
            answer = read_record(run)
        except CheckpointError as exc:
            raise ExperimentError(str(exc)) from exc
    if as_json:
        sys.stdout.write(json.dumps(answer, indent=2, allow_nan=False) + "\n")
    else:
        _show(console, answer)
    bad = any(r["postmortems"] or r["skipped"] or r["error"] for r in answer["runs"])
    return 1 if bad else 0


def _trained(
    path: Path, backend: str, policy: str, steps: int, time_limit: float, console: Console
) -> dict[str, Any]:
    (text,) = read_policies([policy])
    experiment, (name,) = load(path, [backend] if backend else [], at_most=1)
    events: list[dict[str, Any]] = []
    with (
        ended_cleanly(),
        Display(console) as display,
        tempfile.TemporaryDirectory(prefix="mpcore-diagnose-") as folder,
    ):

        def told(event: dict[str, Any]) -> None:
            events.append(event)
            if "phase" in event:
                display(name, text, event)

        display(name, text, {"phase": "start", "step": 0, "of": steps})
        task = {
            "experiment": str(experiment.path.resolve()),
            "backend": name,
            "policy": text,
            "steps": steps,
            "folder": folder,
        }
        ended = run_worker(
            "mpcore.tools.diagnosis.worker",
            json.dumps(task),
            Path(folder) / "log.txt",
            time_limit=time_limit,
            on_event=told,
        )
    found = [event["postmortem"] for event in events if "postmortem" in event]
    error = next((event["error"] for event in events if "error" in event), ended.how)
    taken = next((event["taken"] for event in events if "taken" in event), None)
    run = {"run": f"{name} {text}", "postmortems": found, "skipped": len(found)}
    return {"runs": [run | {"steps": taken, "error": error, "note": ""}]}


def _show(console: Console, answer: dict[str, Any]) -> None:
    for run in answer["runs"]:
        say(console, f"\n{run['run']}")
        for data in run["postmortems"]:
            say(console, str(PostMortem.from_dict(data)))
        if run["error"]:
            say(console, f"failed: {run['error']}")
        elif run["note"]:
            say(console, run["note"])
        elif not run["postmortems"]:
            taken = "" if run["steps"] is None else f" in {run['steps']} steps"
            say(console, f"nothing overflowed{taken}")
