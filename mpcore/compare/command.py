"""The commands ``mpcore compare`` and ``mpcore explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mpcore.backend import load_backend
from mpcore.compare.experiment import load_experiment
from mpcore.compare.job import Settings
from mpcore.compare.report import check_folder, table, write_report
from mpcore.compare.runner import check_backends
from mpcore.compare.runner import compare as run_comparison
from mpcore.errors import ExperimentError
from mpcore.plan import resolve
from mpcore.policy import Policy

__all__ = ["compare", "explain"]

_POLICIES = "float32,mixed_bfloat16,mixed_float16"

ExperimentArg = Annotated[
    Path,
    typer.Argument(
        help="Python file with data(), build_<backend>() and, if wanted, "
        "loss, optimizer, steps, batch. It is run: trust it first."
    ),
]


def compare(
    experiment: ExperimentArg,
    backends: Annotated[
        str,
        typer.Option(
            help="Frameworks, by comma; the first one is the reference. "
            "Default: every one that the file builds a model for."
        ),
    ] = "",
    policies: Annotated[
        str, typer.Option(help="Policies, by comma; a policy with rules in ';' form is one too.")
    ] = _POLICIES,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps; default: the file's.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Examples a step; default: the file's.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
    lockstep_steps: Annotated[
        int, typer.Option(min=0, help="Steps in which all start from the reference's state.")
    ] = 10,
    band_runs: Annotated[
        int, typer.Option(min=0, help="Perturbed runs of the reference that calibrate noise.")
    ] = 3,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds one run may take.")] = 600,
    output: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("compare-report"),
) -> int:
    """Train one model in several frameworks under several policies, and say whether they agree.

    Every run starts from the same weights and sees the same batches, in a process of its own.
    Writes report.html, report.json and one JSONL of step records per run.

    Example: mpcore compare examples/image_cnn/experiment.py --steps 50
    """
    check_folder(output)
    loaded = load_experiment(experiment)
    names = _split(backends) or sorted(loaded.builders, key=_ORDER.index)
    for name in names:
        loaded.builder(name)
    check_backends(names)
    settings = Settings(
        steps or loaded.steps, batch or loaded.batch, seed, lockstep_steps, band_runs
    )
    console = Console()
    texts = _split_policies(policies)
    with _Display(console, settings) as display:
        result = run_comparison(
            loaded, names, texts, settings, time_limit=time_limit, on_event=display
        )
    console.print(table(result))
    written = write_report(result, output)
    console.print(f"report: {output / 'report.html'} (and {len(written) - 1} more files)")
    return 0 if all(run["status"] != "failed" for run in result["runs"]) else 1


def explain(
    experiment: ExperimentArg,
    policy: Annotated[str, typer.Option(help="Name or text of a policy.")] = "mixed_bfloat16",
    backend: Annotated[str, typer.Option(help="Framework; default: the first one built.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show what every layer of an experiment's model would do under a policy, and why.

    Example: mpcore explain examples/image_cnn/experiment.py --policy "mixed_float16; full *.head"
    """
    loaded = load_experiment(experiment)
    parsed = Policy.parse(policy)
    name = backend or min(loaded.builders, key=_ORDER.index)
    builder = loaded.builder(name)
    check_backends([name])
    found = load_backend(name)
    data = loaded.load_data()
    model = found.compare_driver().build(builder, data.x_train[:2], data.layout)
    plan = resolve(parsed, found.layers(model))
    console = Console()
    text = json.dumps(plan.to_dict(), indent=2) if as_json else str(plan)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


_ORDER = ["torch", "tensorflow", "mindspore", "numpy"]


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _split_policies(text: str) -> list[str]:
    """Split at commas, except inside brackets, before ``field=`` and inside a policy with rules."""
    parts: list[str] = []
    for piece in _split(text):
        continues = "=" in piece.split("(")[0] and ";" not in piece.split("=")[0]
        if parts and (continues or parts[-1].count("(") > parts[-1].count(")")):
            parts[-1] += f", {piece}"
        else:
            parts.append(piece)
    if not parts:
        msg = "`policies` must name at least one policy, got nothing"
        raise ExperimentError(msg)
    return parts


class _Display:
    """A line of progress per run while the workers run."""

    def __init__(self, console: Console, settings: Settings) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[phase]:<12} {task.fields[detail]:<22}"),
            TimeElapsedColumn(),
            console=console,
            transient=False,
        )
        self._tasks: dict[tuple[str, str], Any] = {}
        self._current: tuple[str, str] | None = None
        self._terminal = console.is_terminal

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def __call__(self, backend: str, policy: str, event: dict[str, Any]) -> None:
        key = (backend, policy)
        if key not in self._tasks:
            label = f"{backend} {policy}"
            self._tasks[key] = self._progress.add_task(label, phase="", detail="")
            if not self._terminal:
                # A log has no moving bar: say at least what is going on.
                self._progress.console.print(f"{label} ...", highlight=False)
        if self._current not in (None, key):
            self._progress.stop_task(self._tasks[self._current])
        self._current = key
        loss = f"loss {float(event['loss']):.4f} " if "loss" in event else ""
        self._progress.update(
            self._tasks[key],
            phase=event["phase"],
            completed=event["step"],
            total=event["of"],
            detail=f"{loss}{event['step']}/{event['of']}",
        )
