"""The command ``mpcore diagnose``."""

from __future__ import annotations

from functools import partial
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcore._lib.process import ended_cleanly
from mpcore.errors import CheckpointError, ExperimentError
from mpcore.tools.diagnosis.read import read_record
from mpcore.tools.diagnosis.record import PostMortem
from mpcore.tools.experiment.answer import Answer
from mpcore.tools.experiment.options import (
    FIRST_BUILT,
    Format,
    OutputFile,
    Texts,
    TimeLimit,
    backend_option,
    check_seconds,
    load,
    policy_option,
    read_backends,
    read_policies,
)
from mpcore.tools.experiment.progress import Display, say
from mpcore.tools.experiment.work import work

if TYPE_CHECKING:
    from rich.console import Console

    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["diagnose"]

_DEFAULT = "mixed_float16"


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
    backend: Annotated[Texts, backend_option(FIRST_BUILT)] = None,
    policy: Annotated[Texts, policy_option(_DEFAULT)] = None,
    steps: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Steps to train, at most.")
    ] = 100,
    time_limit: TimeLimit = 600,
    form: Format = "text",
    output: OutputFile = None,
) -> int:
    """Say why steps were skipped: where it overflowed first, by how much, and what fixes it.

    An EXPERIMENT.py is trained until the first skipped step, which is then run again under the
    policy, in float32, and under each fix that is tried. The other kinds of RUN are read:
    --backend, --policy, --steps and --time-limit are for an EXPERIMENT.py.

    Exit codes: 0 nothing overflowed, 1 something did, or the run failed, 2 the input was wrong.

    Example: mpcore diagnose examples/image_cnn/experiment.py --policy mixed_float16

    Example: mpcore diagnose model.py --backend torch,mindspore --policy mixed_float16,apex:O2

    Example: mpcore diagnose compare-report --format json

    Example: mpcore diagnose steps.jsonl
    """
    check_seconds(time_limit)
    answer = Answer("mpcore-diagnosis", form, output)
    if run.suffix == ".py":
        texts = read_policies(policy or [_DEFAULT])
        experiment, names = load(run, read_backends(backend))
        with ended_cleanly(), Display(answer.console) as display:
            trained = partial(_trained, experiment, steps, time_limit, display)
            found = {"runs": [trained(name, text) for name in names for text in texts]}
    else:
        found = _read(run, {"--backend": backend, "--policy": policy})
    answer.tell(found, lambda console: _show(console, found))
    bad = any(r["postmortems"] or r["skipped"] or r["error"] for r in found["runs"])
    return 1 if bad else 0


def _read(path: Path, unused: dict[str, Texts]) -> dict[str, Any]:
    for option, value in unused.items():
        if value:
            msg = f"`{option}` is for an EXPERIMENT.py, got it with {path}"
            raise ExperimentError(msg)
    try:
        return read_record(path)
    except CheckpointError as exc:
        raise ExperimentError(str(exc)) from exc


def _trained(
    experiment: Experiment, steps: int, time_limit: float, display: Display, name: str, text: str
) -> dict[str, Any]:
    """Train one backend under one policy until a step is skipped; return what is known of it."""
    task = {"policy": text, "steps": steps}
    module = "mpcore.tools.diagnosis.worker"
    events, error = work(
        module, experiment, name, text, task, display, time_limit=time_limit, steps=steps
    )
    found = [event["postmortem"] for event in events if "postmortem" in event]
    taken = next((event["taken"] for event in events if "taken" in event), None)
    run = {"run": f"{name} {text}", "postmortems": found, "skipped": len(found)}
    return run | {"steps": taken, "error": error, "note": ""}


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
