"""The command ``mpcore compare``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mpcore._lib.process import ended_cleanly
from mpcore.errors import ExperimentError, check_choice
from mpcore.tools.compare.lock import locked
from mpcore.tools.compare.pairs import FLOAT64, LAYERS, PAIRS, Options
from mpcore.tools.compare.reproduce import Reproduction
from mpcore.tools.compare.runner import compare as run_comparison
from mpcore.tools.experiment.answer import Answer
from mpcore.tools.experiment.configuration import read_configurations
from mpcore.tools.experiment.job import Settings, plain
from mpcore.tools.experiment.options import (
    Batch,
    ExperimentFile,
    Format,
    Texts,
    Threads,
    TimeLimit,
    backend_option,
    check_seconds,
    load,
    parts,
    policy_option,
    read_policies,
)
from mpcore.tools.experiment.progress import Display, say
from mpcore.tools.recording.compare_runs import compare_runs
from mpcore.tools.recording.told import tell_runs
from mpcore.tools.reproduction import check_script

if TYPE_CHECKING:
    from mpcore.tools.report.result import Result

__all__ = ["compare"]

_POLICIES = ["float32", "mixed_bfloat16", "mixed_float16"]
_LARGEST_SEED = 2**32 - 1  # of every framework and of numpy

# --- options --------------------------------------------------------------------------------

_CONFIGURATION = """The first one is the reference. A name may say more: torch:compiled,
tensorflow:eager, torch:cuda:1, torch:compiled+cuda, torch@/path/to/python (another environment
that has mpcore). """

_Steps = Annotated[
    int | None,
    typer.Option(min=1, help="Training steps. Default: the file's.", show_default=False),
]
_Seed = Annotated[int, typer.Option(min=0, max=_LARGEST_SEED, help="Seed of weights and batches.")]
_LockstepSteps = Annotated[
    int, typer.Option(min=0, help="Steps in which all start from the reference's state.")
]
_NoiseRuns = Annotated[
    int, typer.Option(min=0, help="Perturbed runs of the reference that calibrate noise.")
]
_Pairs = Annotated[
    str,
    typer.Option(
        metavar="|".join(PAIRS),
        help="What is compared with what: backends (under each policy), policies (in each "
        "backend, with the first one), both; auto: backends, and policies where there is one "
        "backend.",
    ),
]
_Layers = Annotated[
    str,
    typer.Option(
        metavar="|".join(LAYERS),
        help="Look at every layer of one step, find where two runs diverge first, and why: "
        "always, never, or auto: where two runs differ.",
    ),
]
_Float64 = Annotated[
    str,
    typer.Option(
        metavar="|".join(FLOAT64),
        help="Where two runs diverge, run that step in float64 (torch) to tell which one is "
        "wrong: auto, or never.",
    ),
]
_OtherRun = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN_B]",
        help="Two folders that mp.record wrote, instead of an experiment: RUN_A RUN_B.",
        show_default=False,
    ),
]
_Reproduce = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.py",
        help="Write a script that runs the first layer that parts alone, its values beside it, "
        "and say what it printed.",
        show_default=False,
    ),
]
_Output = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the report.")]

# --- commands -------------------------------------------------------------------------------


def compare(
    experiment: ExperimentFile,
    other: _OtherRun = None,
    backend: Annotated[
        Texts, backend_option("all that the file builds a model for", more=_CONFIGURATION)
    ] = None,
    policy: Annotated[Texts, policy_option(", ".join(_POLICIES))] = None,
    steps: _Steps = None,
    batch: Batch = None,
    seed: _Seed = 0,
    lockstep_steps: _LockstepSteps = 10,
    noise_runs: _NoiseRuns = 3,
    pairs: _Pairs = "auto",
    layers: _Layers = "auto",
    float64: _Float64 = "auto",
    threads: Threads = None,
    time_limit: TimeLimit = 600,
    reproduce: _Reproduce = None,
    form: Format = "text",
    output: _Output = Path("compare-report"),
) -> int:
    """Train one model in several backends under several policies, and say whether they agree.

    Every run starts from the same weights and sees the same batches, in a process of its own.
    Where two runs differ, one step is looked at layer by layer: where they diverge first, the
    root cause, and a fix. Writes report.html, report.json and one JSONL of step records per run.

    Exit codes: 0 all runs ended, 1 a run failed, 2 the input was wrong, 130 stopped by Ctrl-C
    (the report holds what was done until then).

    Example: mpcore compare examples/image_cnn/experiment.py --steps 50

    Example: mpcore compare model.py --backend torch,mindspore
    --policy float32 --policy "mixed_float16; full *.head"

    Example: mpcore compare model.py --backend torch,torch:compiled --layers always

    Example: mpcore compare model.py --backend torch --policy float32,mixed_bfloat16 --format json

    Example: mpcore compare model.py --backend torch,tensorflow --reproduce parts.py

    Example: mpcore compare run-a run-b
    """
    # Here, not above: it brings matplotlib, half a second that --help should not cost.
    from mpcore.tools.report.report import check_folder, json_text, table, write_report

    if other is not None or experiment.is_dir():
        return _recorded(experiment, other, form, float64, reproduce)
    check_seconds(time_limit)
    check_choice("format", form, ("text", "json"), ExperimentError)
    check_choice("pairs", pairs, PAIRS, ExperimentError)
    check_choice("layers", layers, LAYERS, ExperimentError)
    check_choice("float64", float64, FLOAT64, ExperimentError)
    check_folder(output)
    reproduction = None if reproduce is None else Reproduction(reproduce)
    texts = read_policies(policy or _POLICIES)
    asked = [str(one) for one in read_configurations(parts(backend))]
    loaded, names = load(experiment, asked, every=True)
    sizes = (steps or loaded.steps, batch or loaded.batch)
    console = Console(stderr=form == "json")
    with locked(output), ended_cleanly(), Display(console) as display:
        result = run_comparison(
            loaded,
            names,
            texts,
            Settings(*sizes, seed, lockstep_steps, noise_runs, threads=threads),
            time_limit=time_limit,
            options=Options(pairs, layers, float64),
            reproduction=reproduction,
            on_event=display,
        )
    written = write_report(result, output)
    if form == "json":
        sys.stdout.write(json_text(result))
    else:
        console.print(table(result))
    if reproduction is not None:
        say(console, f"reproduce: {reproduction.words}")
    say(console, f"report: {output / 'report.html'} (and {len(written) - 1} more files)")
    return _exit_code(result)


def _recorded(
    reference: Path, own: Path | None, form: str, float64: str, reproduce: Path | None
) -> int:
    """Compare two recorded runs; return 0 whatever is found, as for an experiment."""
    if own is None:
        msg = (
            f"`compare` must be given an experiment or two recorded runs, {str(reference)!r} is a "
            "folder alone"
        )
        raise ExperimentError(msg)
    answer = Answer("mpcore-runs", form, None)
    check_choice("float64", float64, FLOAT64, ExperimentError)
    if reproduce is not None:
        check_script(reproduce)
    found = compare_runs(reference, own, replay=float64 != "never", reproduce=reproduce)
    ranks = {str(rank): each.to_dict() for rank, each in found.items()}
    answer.tell(plain({"ranks": ranks}), lambda console: tell_runs(console, found))
    return 0


def _exit_code(result: Result) -> int:
    if result.interrupted:
        return 130
    return 1 if any(run.status == "failed" for run in result.runs) else 0
