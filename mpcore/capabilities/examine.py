"""Examines this machine: a process for each framework, one after the other."""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.machine import cpu_here, cpuinfo, read_cpu, without_tiles
from mpcore._lib.process import run_worker, thread_variables
from mpcore.capabilities.differences import Shown
from mpcore.capabilities.facts import Fact, Framework, Machine, Report
from mpcore.capabilities.load import BUSY, moment, used_by_others
from mpcore.capabilities.verdicts import table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["examine_here", "facts_of", "read_cpu", "requirements"]

_PACKAGES = {
    "keras": ("keras",),
    "ml_dtypes": ("ml_dtypes",),
    "mindspore": ("mindspore",),
    "numpy": ("numpy",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly"),
    "torch": ("torch",),
}
"""Packages that rules look at, and the names they are distributed under."""


def examine_here(
    names: Sequence[str],
    *,
    asked: bool,
    quick: bool,
    time_limit: float,
    on_event: Callable[[str, str, dict[str, Any]], None] = lambda *_: None,
) -> Report:
    """Return what is here.

    Args:
        names: of backends.
        asked: whether the user named them: then a missing framework is a problem.
        quick: whether to leave out speed.
        time_limit: seconds that one framework may take.
        on_event: called with (backend, "", event) on the way, as ``compare.progress.Display``.
    """
    frameworks = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="mpcore-doctor-") as folder:
            found = _framework(name, Path(folder), time_limit, on_event, asked=asked, quick=quick)
        frameworks.append(found)
    return Report(_machine(), tuple(frameworks), requirements())


def facts_of(framework: Framework, machine: Machine) -> dict[str, dict[str, tuple[str, str]]]:
    """Return (level, reason) by operation and dtype, as ``mpcore.capabilities.cache`` keeps it."""
    return {
        family: {dtype: (verdict.level, verdict.why) for dtype, verdict in row.items()}
        for family, row in table(framework, machine).items()
    }


def _framework(
    name: str,
    folder: Path,
    time_limit: float,
    on_event: Callable[[str, str, dict[str, Any]], None],
    *,
    asked: bool,
    quick: bool,
) -> Framework:
    about: dict[str, Any] = {}
    facts: dict[tuple[str, str], dict[str, Any]] = {}
    shown: list[Shown] = []
    last: dict[str, Any] = {}

    def take(event: dict[str, Any]) -> None:
        last.update(event)
        about.update(event.get("about", {}))
        if "fact" in event:
            facts[event["fact"]["family"], event["fact"]["dtype"]] = event["fact"]
        if "difference" in event:
            shown.append(Shown(**event["difference"]))
        for dtype, seconds in event.get("seconds", {}).items():
            facts[event["family"], dtype]["seconds"] = tuple(seconds)
        if "phase" in event:
            on_event(name, "", event)

    on_event(name, "", {"phase": "start", "step": 0, "of": 1})
    task = json.dumps({"backend": name, "quick": quick, "folder": str(folder)})
    log = folder / "log.txt"
    load = 0.0 if quick else _load()
    ended = run_worker(
        "mpcore.capabilities.worker",
        task,
        log,
        time_limit=time_limit,
        on_event=take,
        environment=thread_variables(1 if load >= BUSY else None),
    )
    at = f" (at: {last['trying']})" if "trying" in last else ""
    status, why = "ok", ""
    if "error" in last:
        status, why = last["status"], f"{last['error']}{at}"
    elif ended.how:
        status, why = "failed", f"{ended.how}{at or ' (at: import)'}"
    on_event(name, "", {"phase": "not run" if status == "missing" else status, "step": 1, "of": 1})
    described = {key: about[key] for key in ("versions", "device", "threads", "settings") if about}
    return Framework(
        name,
        status,
        why,
        asked,
        devices=tuple(about.get("devices", ())),
        support={dtype: tuple(own) for dtype, own in about.get("support", {}).items()},
        facts=tuple(Fact(**{**f, "error": float(f.get("error", 0))}) for f in facts.values()),
        differences=tuple(shown),
        load=max(load, last.get("load", 0.0)),
        **described,
    )


def _machine() -> Machine:
    cpu, flags = cpu_here()
    able = hasattr(os, "sched_getaffinity")
    return Machine(
        cpu or platform.processor() or platform.machine(),
        len(os.sched_getaffinity(0)) if able else os.cpu_count() or 1,
        flags,
        f"{platform.system()} {platform.machine()}",
        platform.python_version(),
        _versions(),
        tiles=not without_tiles(cpuinfo()),
    )


def _load(seconds: float = 0.3) -> float:
    """Return the share of the machine that others use now."""
    before = moment()
    time.sleep(seconds)
    return used_by_others(before, moment())


def _versions() -> dict[str, str]:
    found = {}
    for package, distributions in _PACKAGES.items():
        for name in distributions:
            try:
                found[package] = metadata.version(name)
                break
            except metadata.PackageNotFoundError:
                continue  # the next name, or not installed: both are answers
    return found


def requirements() -> dict[str, str]:
    """Return the bounds that mpcore declares for its frameworks, by package."""
    own = {name: package for package, names in _PACKAGES.items() for name in names}
    found = {}
    for line in metadata.requires("mpcore") or ():
        parts = re.match(r"([\w-]+)\s*([<>=][^;\s]*)\s*;", line)  # only the extras have a ";"
        if parts and parts[1] in own and own[parts[1]] != "numpy":
            found[own[parts[1]]] = parts[2]
    return found
