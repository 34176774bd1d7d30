"""The command ``mpcore doctor``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # typer reads annotations
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mpcore._lib.process import ended_cleanly
from mpcore.backend.backend import backend_names
from mpcore.capabilities.cache import keep
from mpcore.capabilities.cases import DTYPES
from mpcore.capabilities.devices import SUFFIXES, device_here, read_device, save_device
from mpcore.capabilities.examine import examine_here, facts_of
from mpcore.errors import ExperimentError
from mpcore.tools.doctor.doctor import advice, examine, recommend, table, to_dict
from mpcore.tools.experiment.answer import Answer
from mpcore.tools.experiment.job import plain
from mpcore.tools.experiment.options import (
    Format,
    OutputFile,
    Texts,
    TimeLimit,
    backend_option,
    check_seconds,
    read_backends,
)
from mpcore.tools.experiment.progress import Display, say

if TYPE_CHECKING:
    from rich.console import Console

    from mpcore.tools.doctor.doctor import Fact, Finding, Framework, Machine, Report, Verdict

__all__ = ["doctor"]


def doctor(
    backend: Annotated[Texts, backend_option("every one")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out speed.")] = False,
    time_limit: TimeLimit = 120,
    hardware: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep what was measured of one --backend as a device, .json or .toml: "
            "mpcore tune reads it.",
            show_default=False,
        ),
    ] = None,
    form: Format = "text",
    output: OutputFile = None,
) -> int:
    """Say what is here: frameworks, devices, what each dtype is and costs, what is wrong.

    Each framework is tried in a process of its own, on numbers whose answers are known.

    Exit codes: 0 nothing is wrong, 1 a problem was found, 2 the input was wrong.

    Example: mpcore doctor

    Example: mpcore doctor --backend torch --hardware here.toml

    Example: mpcore doctor --backend torch,mindspore --quick --format json
    """
    names = read_backends(backend)
    check_seconds(time_limit)
    if hardware is not None:
        _check_hardware(hardware, names, quick=quick)
    answer = Answer("mpcore-doctor", form, output)
    with ended_cleanly(), Display(answer.console) as display:
        report = examine_here(
            names or backend_names(),
            asked=bool(names),
            quick=quick,
            time_limit=time_limit,
            on_event=display,
        )
    for found in report.frameworks:
        if found.status == "ok" and found.facts:
            keep(found.name, found.device, found.versions, facts_of(found, report.machine))
    if hardware is not None:
        save_device(device_here(report.frameworks[0], report.machine), hardware)
    result: dict[str, Any] = plain(to_dict(report))
    answer.tell(result, lambda console: _show(console, report))
    return int(result["exit_code"])


def _check_hardware(path: Path, names: list[str], *, quick: bool) -> None:
    """Refuse what cannot be kept before anything is measured."""
    if quick or len(names) != 1:
        msg = "`--hardware` needs one --backend and no --quick: speed is that of one framework"
        raise ExperimentError(msg)
    if path.suffix not in SUFFIXES or not path.parent.is_dir():
        msg = f"`--hardware` must be a .json or .toml file in a folder, got {str(path)!r}"
        raise ExperimentError(msg)
    if path.exists():
        read_device(path)  # an earlier answer, or it stays


# --- the answer for people --------------------------------------------------------------------


def _show(console: Console, report: Report) -> None:
    say(console, _machine_line(report.machine))
    for framework in report.frameworks:
        say(console, f"\n{_heading(framework)}")
        if framework.facts:
            console.print(_table(framework, report.machine))
            line = advice(framework, report.machine)
            policy = recommend(framework, report.machine)
            start = f"; begin with {policy}" if policy else ""
            say(console, f"advice: {line}{start}")
    findings = examine(report)
    say(console, "")
    for finding in findings:
        say(console, _line(finding))
    if not any(finding.kind == "problem" for finding in findings):
        say(console, "no problems")


def _machine_line(machine: Machine) -> str:
    flags = "unknown" if machine.flags is None else ", ".join(machine.flags) or "none that matter"
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    return (
        f"{machine.cpu}, {machine.cores} cores ({machine.system}); flags: {flags}\n"
        f"Python {machine.python}; installed: {packages or 'no framework'}"
    )


def _heading(framework: Framework) -> str:
    if framework.status == "missing":
        return f"{framework.name}: not installed"
    versions = ", ".join(f"{name} {version}" for name, version in framework.versions.items())
    parts = [versions or framework.name]
    if framework.device:
        parts.append(f"measured on {framework.device}")
        parts.append(f"devices: {', '.join(framework.devices)}")
    if framework.threads:
        parts.append(f"threads: {framework.threads}")
    parts += [f"{name}: {value}" for name, value in framework.settings.items()]
    if framework.error:
        parts.append(f"{framework.status}: {framework.error}")
    return "; ".join(parts)


def _table(framework: Framework, machine: Machine) -> Table:
    facts = {(fact.family, fact.dtype): fact for fact in framework.facts}
    shown = Table("operation", *DTYPES)
    for family, row in table(framework, machine).items():
        cells = [_cell(facts[family, d], row[d]) if d in row else "" for d in DTYPES]
        shown.add_row(family, *cells)
    return shown


def _cell(fact: Fact, verdict: Verdict) -> str:
    """Return the level, and the time, or for 16 bits the speed with half its quartiles' width."""
    if not fact.seconds:
        return verdict.level
    if fact.dtype != "float32" and verdict.speed:
        spread = (verdict.speed.high - verdict.speed.low) / 2 / verdict.speed.median
        return f"{verdict.level} {verdict.speed.median:.2g}x +-{spread:.0%}"
    level = "" if verdict.level == "native" else f"{verdict.level} "
    return f"{level}{1e3 * median(fact.seconds):.3g} ms"


def _line(finding: Finding) -> str:
    where = f"{finding.where}: " if finding.where else ""
    return f"{finding.kind}: {where}{finding.text}\n  -> {finding.remedy}"
