"""The commands ``mpcore compare`` and ``mpcore explain``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from mpcore.backend import backend_names, check_policy, load_backend
from mpcore.compare.experiment import load_experiment
from mpcore.compare.job import Settings
from mpcore.compare.runner import check_backends, read_policies
from mpcore.compare.runner import compare as run_comparison
from mpcore.errors import BackendError, ExperimentError, check_choice
from mpcore.plan import resolve
from mpcore.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.compare.experiment import Experiment

__all__ = ["compare", "explain"]

_POLICIES = "float32,mixed_bfloat16,mixed_float16"
_LARGEST_SEED = 2**32 - 1  # of every framework and of numpy

ExperimentArg = Annotated[
    Path,
    typer.Argument(
        metavar="EXPERIMENT.py",
        help="Python file with data(), build_<backend>() and, if wanted, "
        "loss, optimizer, steps, batch. It is run: trust it first.",
        show_default=False,
    ),
]


def compare(
    experiment: ExperimentArg,
    backends: Annotated[
        str,
        typer.Option(
            help="Frameworks, by comma; the first one is the reference. "
            "Default: every one that the file builds a model for.",
            show_default=False,
        ),
    ] = "",
    policies: Annotated[
        list[str] | None,
        typer.Option(
            help="Policies, by comma, or the option several times; one policy may have "
            f"fields and rules: 'mixed_float16; full *.head'. Default: {_POLICIES}.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Training steps. Default: the file's.", show_default=False),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Examples a step. Default: the file's.", show_default=False),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=_LARGEST_SEED, help="Seed of weights and batches.")
    ] = 0,
    lockstep_steps: Annotated[
        int, typer.Option(min=0, help="Steps in which all start from the reference's state.")
    ] = 10,
    band_runs: Annotated[
        int, typer.Option(min=0, help="Perturbed runs of the reference that calibrate noise.")
    ] = 3,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads inside an operation, in every framework. Default: its own choice.",
            show_default=False,
        ),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(min=1, max=1e6, help="Seconds one run may take.")
    ] = 600,
    output: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("compare-report"),
) -> int:
    """Train one model in several frameworks under several policies, and say whether they agree.

    Every run starts from the same weights and sees the same batches, in a process of its own.
    Writes report.html, report.json and one JSONL of step records per run.

    Example: mpcore compare examples/image_cnn/experiment.py --steps 50

    Example: mpcore compare model.py --backends torch,mindspore
    --policies float32 --policies "mixed_float16; full *.head"
    """
    # Here, not above: it brings matplotlib, half a second that --help should not cost.
    from mpcore.compare.report import check_folder, table, write_report

    if not time_limit <= 1e6:  # nan passes for a number in range
        msg = f"`time_limit` must be a number of seconds, got {time_limit}"
        raise ExperimentError(msg)
    check_folder(output)
    texts = read_policies(_split_policies(policies or [_POLICIES]))
    asked = _split(backends)
    check_backends(asked)
    loaded = load_experiment(experiment)
    names = asked or _default_backends(loaded)
    for name in names:
        loaded.builder(name)
    check_backends(names)
    settings = Settings(
        steps or loaded.steps,
        batch or loaded.batch,
        seed,
        lockstep_steps,
        band_runs,
        threads=threads,
    )
    console = Console()
    with _ended_cleanly(), _Display(console) as display:
        result = run_comparison(
            loaded, names, texts, settings, time_limit=time_limit, on_event=display
        )
    written = write_report(result, output)
    console.print(table(result))
    if result["interrupted"]:
        _say(console, "interrupted: the report holds what was done until then")
    _say(console, f"report: {output / 'report.html'} (and {len(written) - 1} more files)")
    if result["interrupted"]:
        return 130
    return 1 if any(run["status"] == "failed" for run in result["runs"]) else 0


def explain(
    experiment: ExperimentArg,
    policy: Annotated[str, typer.Option(help="Name or text of a policy.")] = "mixed_bfloat16",
    backend: Annotated[
        str, typer.Option(help="Framework. Default: the first one built.", show_default=False)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show what every layer of an experiment's model would do under a policy, and why.

    Example: mpcore explain examples/image_cnn/experiment.py --policy "mixed_float16; full *.head"

    Example: mpcore explain model.py --backend mindspore --policy mixed_float16 --json
    """
    parsed = Policy.parse(policy)
    check_backends([backend] if backend else [])
    loaded = load_experiment(experiment)
    name = backend or _default_backends(loaded)[0]
    builder = loaded.builder(name)
    check_backends([name])
    data = loaded.data()
    # Frameworks chatter on standard output and leave folders behind: neither is the answer.
    for variable, quiet in (("TF_CPP_MIN_LOG_LEVEL", "3"), ("GLOG_v", "3")):
        os.environ.setdefault(variable, quiet)
    with (
        tempfile.TemporaryDirectory(prefix="mpcore-explain-") as scratch,
        contextlib.chdir(scratch),
        contextlib.redirect_stdout(sys.stderr),
    ):
        found = load_backend(name)
        model = found.compare_driver().build(builder, data.x_train[:2], data.layout)
        plan = resolve(parsed, found.layers(model))
        can = found.capabilities(model)
    console = Console()
    _say(console, json.dumps(plan.to_dict(), indent=2) if as_json else str(plan))
    try:
        check_policy(parsed, can)
    except BackendError as exc:
        sys.stderr.write(f"warning: {exc}\n")
    return 0


_ORDER = ["torch", "tensorflow", "mindspore"]


def _default_backends(loaded: Experiment) -> list[str]:
    """Return the backends that the file builds for; a helper called build_block is none."""
    known = [name for name in loaded.builders if name in backend_names()]
    if not known:
        for name in loaded.builders:
            check_choice("backends", name, backend_names(), ExperimentError)
    return sorted(known, key=lambda name: (*(name != first for first in _ORDER), name))


def _say(console: Console, text: str) -> None:
    """Print text as it is: brackets are no markup, and a line stays a line."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _ended_cleanly() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end us by an exception, so that everything is removed."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, leave) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _split_policies(texts: list[str]) -> list[str]:
    """Return the policies of every ``--policies``: each is split on its own."""
    parts = [part for text in texts for part in _split_policy_list(text)]
    if not parts:
        msg = "`policies` must name at least one policy, got nothing"
        raise ExperimentError(msg)
    return parts


def _split_policy_list(text: str) -> list[str]:
    """Split at commas, except inside brackets, before ``field=`` and inside a policy with rules."""
    parts: list[str] = []
    for piece in _split(text):
        continues = "=" in piece.split("(")[0] and ";" not in piece.split("=")[0]
        if parts and (continues or parts[-1].count("(") > parts[-1].count(")")):
            parts[-1] += f", {piece}"
        else:
            parts.append(piece)
    return parts


class _Display:
    """What goes on while the workers run: a bar per run on a terminal, plain lines in a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(width=27, no_wrap=True, overflow="ellipsis"),
            ),
            BarColumn(bar_width=12),
            TextColumn(
                "{task.fields[phase]:<11} {task.fields[detail]:<19}",
                markup=False,
                table_column=Column(no_wrap=True),
            ),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[tuple[str, str], Any] = {}
        self._current: tuple[str, str] | None = None

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def __call__(self, backend: str, policy: str, event: dict[str, Any]) -> None:
        label = f"{backend} {policy}".strip()
        if "warning" in event:
            _say(self._console, f"warning: {label}: {event['warning']}")
        elif self._console.is_terminal:
            self._move((backend, policy), label, event)
        elif event["phase"] in _TOLD:
            _say(self._console, f"{label}: {event['phase']} {_detail(event)}".rstrip())

    def _move(self, key: tuple[str, str], label: str, event: dict[str, Any]) -> None:
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(label, phase="", detail="")
        if self._current not in (None, key):
            self._progress.stop_task(self._tasks[self._current])
        self._current = key
        self._progress.update(
            self._tasks[key],
            phase=event["phase"],
            completed=event["step"],
            total=event["of"],
            detail=_detail(event),
        )


_TOLD = ("inspect", "start", "ok", "failed", "not run")
"""Phases that a log gets a line for: the beginning and the end of each run."""


def _detail(event: dict[str, Any]) -> str:
    if event["of"] <= 1 and "loss" not in event:
        return ""  # a phase, not a count
    loss = f"loss {float(event['loss']):.4f} " if "loss" in event else ""
    return f"{loss}{event['step']}/{event['of']}"
