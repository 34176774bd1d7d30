"""The command ``mpcore compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mpcore._lib.process import ended_cleanly
from mpcore.errors import ExperimentError, check_choice
from mpcore.tools.compare.lock import locked
from mpcore.tools.compare.pairs import ACROSS, DEPTHS, EXACT, Options
from mpcore.tools.compare.runner import compare as run_comparison
from mpcore.tools.experiment.job import Settings
from mpcore.tools.experiment.options import (
    ExperimentFile,
    load,
    read_policies,
    split,
    split_policies,
)
from mpcore.tools.experiment.progress import Display, say

__all__ = ["compare"]

_POLICIES = "float32,mixed_bfloat16,mixed_float16"
_LARGEST_SEED = 2**32 - 1  # of every framework and of numpy

# --- options --------------------------------------------------------------------------------

_Backends = Annotated[
    str,
    typer.Option(
        metavar="SIDE,...",
        help="What runs it, by comma; the first one is the reference. A side is a framework, "
        "and may say more: torch:compiled, tensorflow:eager, torch:cuda:1, torch:compiled+cuda, "
        "torch@/path/to/python (another environment that has mpcore). "
        "Default: every framework that the file builds a model for.",
        show_default=False,
    ),
]
_Policies = Annotated[
    list[str] | None,
    typer.Option(
        help="Policies, by comma, or the option several times; one policy may have "
        f"fields and rules: 'mixed_float16; full *.head'. Default: {_POLICIES}.",
        show_default=False,
    ),
]
_Steps = Annotated[
    int | None,
    typer.Option(min=1, help="Training steps. Default: the file's.", show_default=False),
]
_Batch = Annotated[
    int | None,
    typer.Option(min=1, help="Examples a step. Default: the file's.", show_default=False),
]
_Seed = Annotated[int, typer.Option(min=0, max=_LARGEST_SEED, help="Seed of weights and batches.")]
_LockstepSteps = Annotated[
    int, typer.Option(min=0, help="Steps in which all start from the reference's state.")
]
_BandRuns = Annotated[
    int, typer.Option(min=0, help="Perturbed runs of the reference that calibrate noise.")
]
_Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Threads inside an operation, in every framework. Default: its own choice.",
        show_default=False,
    ),
]
_TimeLimit = Annotated[float, typer.Option(min=1, max=1e6, help="Seconds one run may take.")]
_Across = Annotated[
    str,
    typer.Option(
        help="What is compared with what: sides (under each policy), policies (on each side, "
        "with the first one), both; auto: sides, and policies where there is one side."
    ),
]
_Depth = Annotated[
    str,
    typer.Option(
        help="Look at every layer of one step, find where two runs part first, and why: "
        "always, never, or auto: where two runs differ."
    ),
]
_Exact = Annotated[
    str,
    typer.Option(
        help="Where two runs part, run that step in float64 (torch) to tell which one is wrong: "
        "auto, or never."
    ),
]
_Output = Annotated[Path, typer.Option(help="Folder for the report.")]
# --- commands -------------------------------------------------------------------------------


def compare(
    experiment: ExperimentFile,
    backends: _Backends = "",
    policies: _Policies = None,
    steps: _Steps = None,
    batch: _Batch = None,
    seed: _Seed = 0,
    lockstep_steps: _LockstepSteps = 10,
    band_runs: _BandRuns = 3,
    across: _Across = "auto",
    depth: _Depth = "auto",
    exact: _Exact = "auto",
    threads: _Threads = None,
    time_limit: _TimeLimit = 600,
    output: _Output = Path("compare-report"),
) -> int:
    """Train one model on several sides under several policies, and say whether they agree.

    A side is a framework, or one mode, device or environment of it. Every run starts from the
    same weights and sees the same batches, in a process of its own. Where two runs differ, one
    step is looked at layer by layer: where they part first, why, and what cures it. Writes
    report.html, report.json and one JSONL of step records per run.

    Exit codes: 0 all runs ended, 1 a run failed, 2 the input was wrong, 130 stopped by Ctrl-C
    (the report holds what was done until then).

    Example: mpcore compare examples/image_cnn/experiment.py --steps 50

    Example: mpcore compare model.py --backends torch,mindspore
    --policies float32 --policies "mixed_float16; full *.head"

    Example: mpcore compare model.py --backends torch,torch:compiled --depth always

    Example: mpcore compare model.py --backends torch --policies float32,mixed_bfloat16
    """
    # Here, not above: it brings matplotlib, half a second that --help should not cost.
    from mpcore.tools.report.report import check_folder, table, write_report

    _check_time_limit(time_limit)
    check_choice("across", across, ACROSS, ExperimentError)
    check_choice("depth", depth, DEPTHS, ExperimentError)
    check_choice("exact", exact, EXACT, ExperimentError)
    check_folder(output)
    texts = read_policies(split_policies(policies or [_POLICIES]))
    loaded, names = load(experiment, split(backends))
    options = Options(across, depth, exact)
    sizes = (steps or loaded.steps, batch or loaded.batch)
    settings = Settings(*sizes, seed, lockstep_steps, band_runs, threads=threads)
    console = Console()
    with locked(output), ended_cleanly(), Display(console) as display:
        result = run_comparison(
            loaded,
            names,
            texts,
            settings,
            time_limit=time_limit,
            options=options,
            on_event=display,
        )
    written = write_report(result, output)
    console.print(table(result))
    say(console, f"report: {output / 'report.html'} (and {len(written) - 1} more files)")
    return _exit_code(result)


# --- what they do ---------------------------------------------------------------------------


def _check_time_limit(seconds: float) -> None:
    if not seconds <= 1e6:  # nan passes for a number in range
        msg = f"`time_limit` must be a number of seconds, got {seconds}"
        raise ExperimentError(msg)


def _exit_code(result: dict[str, Any]) -> int:
    if result["interrupted"]:
        return 130
    return 1 if any(run["status"] == "failed" for run in result["runs"]) else 0
