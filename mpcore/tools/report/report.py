"""The report of a comparison: a table for the terminal, ``report.json`` and ``report.html``.

The result is one dict of plain data. ``runs`` and ``pairs`` are lists; non-finite numbers are
the text ``"inf"``, ``"-inf"`` or ``"nan"``; steps count from 0, like the places in the lists.

- ``report_folder``: what may be written where, and how
- ``report_table``: the tables of the terminal
- ``report_page``: the page, with ``charts``, ``drawing`` and ``report_svg`` for its charts
- ``report_view``, ``report_words``, ``report_numbers``: its cells, sentences and numbers
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mpcore.errors import ExperimentError
from mpcore.tools.report.folder import check_folder, earlier_files, record_names, replace_files
from mpcore.tools.report.page import page
from mpcore.tools.report.table import table

__all__ = ["check_folder", "json_text", "table", "write_report"]


def write_report(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write the report and return its files: either all are new, or the old ones are whole.

    ``report.json`` is the result without the ``records`` of its runs; those become the
    ``.jsonl`` files. Every file is written beside its place and moved there when all are
    ready. Step records of an earlier report that has no successor are removed.

    Args:
        result: as in this module's docstring; left untouched.
        folder: created where missing; see ``check_folder``.

    Raises:
        ExperimentError: the folder is refused or cannot be written, or the result holds
            something that strict JSON does not have.
    """
    folder = Path(folder)
    earlier = earlier_files(folder)
    contents = _contents(result)
    replace_files(folder, contents, earlier)
    return [folder / name for name in contents]


def _contents(result: dict[str, Any]) -> dict[str, bytes]:
    """Return every file of the report by name; ``report.json``, which marks the folder, first."""
    runs = result["runs"]
    text = {"report.json": json_text(result), "report.html": ""}
    for name, run in zip(record_names(runs), runs, strict=True):
        if "records" in run:
            text[name] = "".join(f"{_json(record)}\n" for record in run["records"])
    text["report.html"] = page(_lean(result))
    # a lone surrogate (a strange file name) becomes \udcxx, which JSON reads back
    return {name: value.encode("utf-8", "backslashreplace") for name, value in text.items()}


def json_text(result: dict[str, Any]) -> str:
    """Return the text of ``report.json``."""
    return _json(_lean(result), indent=2) + "\n"


def _lean(result: dict[str, Any]) -> dict[str, Any]:
    runs = [{k: v for k, v in run.items() if k != "records"} for run in result["runs"]]
    return {**result, "runs": runs}


def _json(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as exc:
        msg = f"`result` must be plain data, inf and nan as text, to be written as JSON: {exc}"
        raise ExperimentError(msg) from exc
