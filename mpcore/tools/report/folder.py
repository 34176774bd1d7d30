"""The folder of a report: what may be written where, and how it is written whole or not at all.

A report folder holds ``report.json``, ``report.html`` and one file of step records per run,
``<backend>-<policy>.jsonl``, and nothing else. An earlier report is recognised by a
``report.json`` that has ``experiment`` and ``runs``: its files, the records of exactly its runs
among them, may be replaced. Whatever else is in the folder belongs to the user and stops us.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from mpcore._lib.files import is_left_over, write_files
from mpcore.errors import ExperimentError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["check_folder", "earlier_files", "record_names", "replace_files"]


def check_folder(folder: Path) -> None:
    """Refuse a folder in which a report would replace something that is not a report's.

    Missing, empty, or holding an earlier report and nothing else is fine; nothing is changed.

    Raises:
        ExperimentError: ``folder`` is a file or lies in one, cannot be read, or holds a file
            that no report wrote; the message names the first one.
    """
    earlier_files(Path(folder))


def earlier_files(folder: Path) -> set[str]:
    """Return the names of what an earlier report left in ``folder``.

    Raises:
        ExperimentError: as ``check_folder``.
    """
    try:
        nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not nearest.is_dir():
            msg = f"`--output` must be a folder, got {str(folder)!r}: {nearest.name!r} is a file"
            raise ExperimentError(msg)
        entries = sorted(folder.iterdir()) if nearest == folder else []
        allowed = _earlier_names(folder / "report.json")
        foreign = [e.name for e in entries if e.is_dir() or not _is_own(e, allowed)]
    except OSError as exc:
        msg = f"`--output` {str(folder)!r} cannot be read: {exc}; choose another one"
        raise ExperimentError(msg) from exc
    if foreign:
        msg = (
            f"`--output` {str(folder)!r} holds {foreign[0]!r}, which no report wrote; "
            "choose another --output or remove it"
        )
        raise ExperimentError(msg)
    return {entry.name for entry in entries}


def _is_own(path: Path, allowed: set[str]) -> bool:
    return path.name in allowed or is_left_over(path)


def _earlier_names(path: Path) -> set[str]:
    """Return the names that the report in ``path`` may own; none if it is not a report."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        recognised = isinstance(result["runs"], list) and "experiment" in result
        keys = [(f"{run['backend']}", f"{run['policy']}") for run in result["runs"]]
        names = record_names(keys) if recognised else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()
    return set() if names is None else {"report.json", "report.html", *names}


def record_names(keys: Iterable[tuple[str, str]]) -> list[str]:
    """Return the file name of each run's records, safe everywhere and all different.

    Args:
        keys: backend and policy of each run.
    """
    names: list[str] = []
    taken: Counter[str] = Counter()
    for key in keys:
        name = re.sub(r"[^\w.+-]+", "_", "-".join(key))[:100]
        stem = name.lstrip(".") or "run"
        while taken[stem.lower()]:
            taken[stem.lower()] += 1
            stem = f"{name}-{taken[stem.lower()]}"
        taken[stem.lower()] += 1
        names.append(f"{stem}.jsonl")
    return names


def replace_files(folder: Path, contents: dict[str, bytes], earlier: set[str]) -> None:
    """Write every file of ``contents``, and remove those of ``earlier`` without a successor.

    Args:
        folder: created where missing.
        contents: every file by name.
        earlier: as ``earlier_files`` returned them.

    Raises:
        ExperimentError: it cannot be written; then the earlier files are whole.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_files(folder, contents)
        for name in earlier - contents.keys():
            (folder / name).unlink(missing_ok=True)
    except OSError as exc:
        msg = f"the report could not be written to {str(folder)!r}: {exc}; choose another --output"
        raise ExperimentError(msg) from exc
