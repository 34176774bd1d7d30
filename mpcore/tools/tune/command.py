"""The command ``mpcore tune``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcore._lib.files import write_text
from mpcore._lib.process import age, ended_cleanly
from mpcore.capabilities.devices import device_of
from mpcore.errors import ExperimentError, check_choice
from mpcore.numerics.dtypes import parse_dtype
from mpcore.policy.policy import Policy
from mpcore.tools.experiment.answer import Answer, check_place
from mpcore.tools.experiment.job import plain
from mpcore.tools.experiment.options import (
    FIRST_BUILT,
    Batch,
    ExperimentFile,
    Format,
    Texts,
    Threads,
    backend_option,
    load,
    parts,
    read_backends,
)
from mpcore.tools.experiment.progress import say
from mpcore.tools.tune.foretold import foretell
from mpcore.tools.tune.live import Live
from mpcore.tools.tune.page import page as draw_page
from mpcore.tools.tune.runner import Runner
from mpcore.tools.tune.task import BUDGET, FAST, LOW, Task
from mpcore.tools.tune.toml import HEAD, document
from mpcore.tools.tune.words import checked, lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from mpcore.capabilities.hardware import Device
    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.tune.evidence import Evidence

__all__ = ["read_formats", "tune"]

_END = 0.3  # of what it took to start: to write and to end, on a machine that may be busy


def tune(
    experiment: ExperimentFile,
    backend: Annotated[Texts, backend_option(FIRST_BUILT)] = None,
    formats: Annotated[
        str, typer.Option(metavar="DTYPES", help="16-bit dtypes that may be used, by comma.")
    ] = "bfloat16",
    budget: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=1e6,
            help=f"Seconds. Default: {BUDGET:g}, or {FAST:g} with --fast.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Steps of each training run of the proof. Default: the file's.",
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Largest relative rise of the held-out loss over float32's. Default: two standard "
            "deviations of float32 in other orders of the data.",
            show_default=False,
        ),
    ] = None,
    batch: Batch = None,
    threads: Threads = None,
    tries: Annotated[
        int, typer.Option("--try", min=0, max=50, help="Policies to try beside the named ones.")
    ] = 8,
    fast: Annotated[
        bool, typer.Option("--fast", help="Stop before the proof by training.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="POLICY.toml",
            help="Measure this policy anew, here, instead of a search.",
            show_default=False,
        ),
    ] = None,
    for_device: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DEVICE",
            help="Predict for a device that is not here, by name (mp.hardware) or by its "
            "platform_config file of CANN; nothing is measured.",
            show_default=False,
        ),
    ] = None,
    hardware: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What `mpcore doctor --hardware` measured here: dtypes that it forbids are not "
            "tried.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(metavar="FILE.toml", help="The policy; its comments are the evidence.")
    ] = Path("tuned.toml"),
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Page with the picture.", show_default=False),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE.json", help="Everything, as JSON.", show_default=False
        ),
    ] = None,
    form: Format = "text",
) -> int:
    """Find the fastest policy that trains as well as float32, by measuring.

    Each candidate is screened by one step against float64, fights the best so far on whole steps,
    and is confirmed with fresh models; the winner is trained beside float32. A second call goes on
    from the log beside the output; Ctrl-C writes the best so far.

    Exit codes: 0 a policy was found (float32 is one, too), 1 a run failed, 2 the input was wrong.

    Example: mpcore tune examples/char_transformer/experiment.py --threads 1

    Example: mpcore tune model.py --fast --formats bfloat16,float16 --page tune.html

    Example: mpcore tune model.py --check tuned.toml

    Example: mpcore tune model.py --for h100
    """
    device = None if for_device is None else device_of(for_device)
    seconds = budget if budget is not None else FAST if fast else BUDGET
    if not seconds <= 1e6:
        msg = f"`--budget` must be a number of seconds, got {seconds}"
        raise ExperimentError(msg)
    policy = "" if check is None else str(Policy.load(check))
    wanted = read_formats(formats)
    here = None if hardware is None else device_of(str(hardware), "hardware")
    said = ((dtype, "" if here is None else here.forbids(dtype)) for dtype in wanted)
    forbidden = tuple((dtype, why) for dtype, why in said if why)
    task = Task("", wanted, seconds, steps, batch, tries, fast, tolerance, policy, forbidden)
    answer = Answer("mpcore-tune", form, json_file)
    check_place("output", output, lambda path: _begins(path, HEAD))
    if page is not None:
        check_place("page", page, lambda path: _begins(path, "<!doctype html>"))
    loaded, names = load(experiment, read_backends(backend))
    several = len(names) > 1
    if device is not None:
        if check is not None or page is not None:
            msg = "`--for` measures nothing: leave out --check and --page"
            raise ExperimentError(msg)
        return _predicted(loaded, names, task, device, output, answer)
    found: dict[str, Evidence] = {}
    failed: dict[str, str] = {}
    stopped, spent = False, age()
    ending = _END * spent
    with ended_cleanly():
        for name in names:
            own = output.with_stem(f"{output.stem}-{name}") if several else output
            with Live(answer.console, name) as live:
                one = replace(task, backend=name)
                log = own.with_suffix(".log.jsonl")
                runner = Runner(loaded.path, one, log, threads, live, spent, ending)
                spent = 0.0
                try:
                    found[name] = runner.run()
                except ExperimentError as exc:
                    failed[name] = str(exc)
                except KeyboardInterrupt:
                    stopped, found[name] = True, runner.so_far("it was stopped")
            if name in found and found[name].policy:
                write_text(own, document(found[name]))
            if stopped:
                break
    if page is not None and any(one.policy for one in found.values()):
        write_text(page, draw_page(loaded.name, found))

    def show(console: Console) -> None:
        for name, one in found.items():
            if several:
                say(console, f"\n{name}")
            told = checked(one) if check is not None else lines(one) if one.policy else []
            for line in told or ["stopped before anything was measured: nothing was written"]:
                say(console, line)
        for name, why in failed.items():
            say(console, f"{name}: failed: {why}")

    told: dict[str, Any] = {
        "experiment": loaded.name,
        "found": {name: one.to_dict() for name, one in found.items()},
        "failed": failed,
    }
    answer.tell(plain(told), show)
    return 130 if stopped else 1 if failed else 0


def _predicted(
    experiment: Experiment,
    names: Sequence[str],
    task: Task,
    device: Device,
    output: Path,
    answer: Answer,
) -> int:
    found = {name: foretell(experiment, replace(task, backend=name), device) for name in names}
    for name, one in found.items():
        own = output.with_stem(f"{output.stem}-{name}") if len(names) > 1 else output
        write_text(own, one.document(experiment.name, name))

    def show(console: Console) -> None:
        for one in found.values():
            for line in one.lines():
                say(console, line)

    told = {name: one.to_dict() for name, one in found.items()}
    answer.tell(plain({"experiment": experiment.name, "found": told, "failed": {}}), show)
    return 0


def read_formats(text: str) -> tuple[str, ...]:
    """Return the 16-bit dtypes of a text.

    Raises:
        ExperimentError: one is none, or there is none.
    """
    found = [parse_dtype(part, "formats") for part in parts([text])]
    for one in found:
        check_choice("formats", one, LOW, ExperimentError)
    if not found:
        msg = "`--formats` must name bfloat16, float16 or both, got nothing"
        raise ExperimentError(msg)
    return tuple(dict.fromkeys(found))


def _begins(path: Path, head: str) -> bool:
    return path.is_file() and path.read_bytes()[:200].startswith(head.encode())
