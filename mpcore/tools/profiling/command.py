"""The command ``mpcore profile``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcore._lib.process import ended_cleanly
from mpcore.tools.experiment.answer import Answer
from mpcore.tools.experiment.job import plain
from mpcore.tools.experiment.options import (
    FIRST_BUILT,
    Batch,
    ExperimentFile,
    Format,
    OutputFile,
    Texts,
    Threads,
    TimeLimit,
    backend_option,
    check_seconds,
    load,
    policy_option,
    read_devices,
    read_policies,
)
from mpcore.tools.experiment.progress import Display
from mpcore.tools.experiment.work import work
from mpcore.tools.profiling.calls import show_calls
from mpcore.tools.profiling.table import show

if TYPE_CHECKING:
    from rich.console import Console

    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["profile"]

_DEFAULT = "mixed_bfloat16"
_MORE = "A name may end in a device: torch:cuda:1. "


def profile(
    experiment: ExperimentFile,
    backend: Annotated[Texts, backend_option(FIRST_BUILT, more=_MORE)] = None,
    policy: Annotated[Texts, policy_option(_DEFAULT)] = None,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Steps under the profiler.")] = 5,
    batch: Batch = None,
    trials: Annotated[int, typer.Option(min=0, max=20, help="Rules to try on whole steps.")] = 3,
    rows: Annotated[int, typer.Option(min=1, help="Rows shown of each table.")] = 10,
    threads: Threads = None,
    time_limit: TimeLimit = 600,
    graph: Annotated[
        bool,
        typer.Option(
            "--graph",
            help="Time each call of the model's graph and each cast, alone, instead of steps. "
            "Policies are read as by=graph; torch.",
        ),
    ] = False,
    form: Format = "text",
    output: OutputFile = None,
) -> int:
    """Say where the time of a training step goes, and which rules would make it shorter.

    Time by op and dtype, forward and backward; casts and what causes them; what was not lowered
    and why; kernels that are slower in 16 bits here, timed alone on their real shapes; then whole
    steps under float32 and under the rules that promise most, in turn with the policy's own.

    Exit codes: 0 done, 1 a run failed, 2 the input was wrong.

    Example: mpcore profile examples/char_transformer/experiment.py

    Example: mpcore profile model.py --backend torch,tensorflow --policy autocast_bfloat16

    Example: mpcore profile model.py --policy "mixed_float16; full *.attn" --output profile.json

    Example: mpcore profile model.py --backend torch --policy autocast_bfloat16 --graph
    """
    check_seconds(time_limit)
    answer = Answer("mpcore-profile", form, output)
    texts = read_policies(policy or [_DEFAULT])
    loaded, names = load(experiment, read_devices(backend))
    if graph:
        return show_calls(loaded, names, texts, rows, answer)
    wanted = _Wanted(steps, batch, trials, threads, time_limit)
    with ended_cleanly(), Display(answer.console) as display:
        found = [_work(loaded, name, text, wanted, display) for name in names for text in texts]

    def tables(console: Console) -> None:
        for one in found:
            show(console, one, rows)

    answer.tell(plain({"experiment": loaded.name, "profiles": found}), tables)
    return 1 if any(one["error"] for one in found) else 0


@dataclass(frozen=True)
class _Wanted:
    """Options that every profile gets."""

    steps: int
    batch: int | None
    trials: int
    threads: int | None
    time_limit: float


def _work(
    experiment: Experiment, name: str, text: str, wanted: _Wanted, display: Display
) -> dict[str, Any]:
    numbers = {"steps": wanted.steps, "batch": wanted.batch, "trials": wanted.trials}
    events, error = work(
        "mpcore.tools.profiling.worker",
        experiment,
        name,
        text,
        {"policy": text, **numbers},
        display,
        time_limit=wanted.time_limit,
        threads=wanted.threads,
    )
    found = next((event["profile"] for event in events if "profile" in event), None)
    error = "" if found else error
    display(name, text, {"phase": "failed" if error else "ok", "step": 1, "of": 1})
    return {"backend": name, "policy": text, "error": error} | (found or {})
