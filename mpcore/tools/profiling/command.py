"""The command ``mpcore profile``."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from mpcore._lib.process import ended_cleanly, run_worker, thread_variables
from mpcore.errors import ExperimentError
from mpcore.tools.experiment.job import plain, write_json
from mpcore.tools.experiment.options import load, read_policies, split, split_policies
from mpcore.tools.experiment.progress import Display
from mpcore.tools.profiling.table import show

if TYPE_CHECKING:
    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["profile"]

_FORMAT = {"format": "mpcore-profile", "version": 1}


def profile(
    experiment: Annotated[
        Path,
        typer.Argument(
            metavar="EXPERIMENT.py",
            help="Python file with data() and build_<backend>(), as for mpcore compare. "
            "It is run: trust it first.",
            show_default=False,
        ),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or text of a policy; the option several times for several. "
            "Default: mixed_bfloat16.",
            show_default=False,
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            help="Frameworks, by comma. Default: the first one that the file builds for.",
            show_default=False,
        ),
    ] = "",
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Steps under the profiler.")] = 5,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Examples a step. Default: the file's.", show_default=False),
    ] = None,
    tries: Annotated[
        int, typer.Option("--try", min=0, max=20, help="Rules to try on whole steps.")
    ] = 3,
    rows: Annotated[int, typer.Option(min=1, help="Rows shown of each table.")] = 10,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads inside an operation. Default: the framework's choice.",
            show_default=False,
        ),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(min=1, max=1e6, help="Seconds one profile may take.")
    ] = 600,
    output: Annotated[
        Path | None, typer.Option(help="JSON file to write, too.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say where the time of a training step goes, and which rules would make it shorter.

    Time by op and dtype, forward and backward; casts and what causes them; what was not lowered
    and why; kernels that are slower in 16 bits here, timed alone on their real shapes; then whole
    steps under float32 and under the rules that promise most, in turn with the policy's own.

    Exit codes: 0 done, 1 a run failed, 2 the input was wrong.

    Example: mpcore profile examples/char_transformer/experiment.py

    Example: mpcore profile model.py --backend torch,tensorflow --policy autocast_bfloat16

    Example: mpcore profile model.py --policy "mixed_float16; full *.attn" --output profile.json
    """
    if not time_limit <= 1e6:  # nan passes for a number in range with older typer
        msg = f"`--time-limit` must be a number of seconds, got {time_limit}"
        raise ExperimentError(msg)
    _check_output(output)
    texts = read_policies(split_policies(policy or ["mixed_bfloat16"]))
    asked = split(backend)
    loaded, names = load(experiment, asked, at_most=len(asked) or 1)
    wanted = _Wanted(steps, batch, tries, threads, time_limit)
    console = Console()
    with ended_cleanly(), Display(Console(stderr=True) if as_json else console) as display:
        found = [_work(loaded, name, text, wanted, display) for name in names for text in texts]
    result = plain({**_FORMAT, "experiment": loaded.name, "profiles": found})
    if output is not None:
        write_json(output, result)
    if as_json:
        sys.stdout.write(json.dumps(result, indent=2, allow_nan=False) + "\n")
    else:
        for one in found:
            show(console, one, rows)
    return 1 if any(one["error"] for one in found) else 0


@dataclass(frozen=True)
class _Wanted:
    """Options that every profile gets."""

    steps: int
    batch: int | None
    tries: int
    threads: int | None
    time_limit: float


def _check_output(output: Path | None) -> None:
    if output is None:
        return
    if output.is_dir() or not output.absolute().parent.is_dir():
        what = "a folder" if output.is_dir() else f"in {str(output.parent)!r}, which is not there"
        msg = (
            f"`--output` must be a file in a folder that exists, got {str(output)!r}: it is {what}"
        )
        raise ExperimentError(msg)


def _work(
    experiment: Experiment, name: str, text: str, wanted: _Wanted, display: Display
) -> dict[str, Any]:
    events: list[dict[str, Any]] = []

    def on_event(event: dict[str, Any]) -> None:
        if "phase" in event:
            display(name, text, event)
        else:
            events.append(event)

    display(name, text, {"phase": "start", "step": 0, "of": 1})
    with tempfile.TemporaryDirectory(prefix="mpcore-profile-") as folder:
        task = {
            "experiment": str(experiment.path.resolve()),
            "backend": name,
            "policy": text,
            "steps": wanted.steps,
            "batch": wanted.batch,
            "tries": wanted.tries,
            "folder": folder,
        }
        ended = run_worker(
            "mpcore.tools.profiling.worker",
            json.dumps(task),
            Path(folder) / "log.txt",
            time_limit=wanted.time_limit,
            on_event=on_event,
            environment=thread_variables(wanted.threads),
        )
    found = next((event["profile"] for event in events if "profile" in event), None)
    error = "" if found else next((e["error"] for e in events if "error" in e), ended.how)
    display(name, text, {"phase": "failed" if error else "ok", "step": 1, "of": 1})
    return {"backend": name, "policy": text, "error": error} | (found or {})
