"""The report of a comparison: a table for the terminal, ``report.json`` and ``report.html``.

- ``result``, ``layers``: the values that all of it is made of, and their JSON
- ``folder``: what may be written where, and how
- ``table``, ``depth_table``: the tables of the terminal
- ``page``: the page, with ``charts``, ``bars``, ``drawing`` and ``svg`` for its charts
- ``changes``, with ``changes_words``, ``changes_table`` and ``changes_page``: two results side by
  side, for the command ``mpcore report``
- ``view``, ``depth``, ``cells``, ``overflow``, ``dtypes``, ``words``, ``answers``, ``numbers``:
  its cells, sentences and numbers
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore.errors import ExperimentError
from mpcore.tools.report.folder import check_folder, earlier_files, record_names, replace_files
from mpcore.tools.report.page import page
from mpcore.tools.report.table import table

if TYPE_CHECKING:
    from mpcore.tools.report.result import Result

__all__ = ["check_folder", "json_text", "table", "write_report"]


def write_report(result: Result, folder: Path) -> list[Path]:
    """Write the report and return its files: either all are new, or the old ones are whole.

    ``report.json`` is the result without the ``records`` of its runs; those become the
    ``.jsonl`` files. Every file is written beside its place and moved there when all are
    ready. Step records of an earlier report that has no successor are removed.

    Args:
        result: the comparison.
        folder: created where missing; see ``check_folder``.

    Raises:
        ExperimentError: the folder is refused or cannot be written, or the records of a
            run hold something that strict JSON does not have.
    """
    folder = Path(folder)
    earlier = earlier_files(folder)
    contents = _contents(result)
    replace_files(folder, contents, earlier)
    return [folder / name for name in contents]


def _contents(result: Result) -> dict[str, bytes]:
    """Return every file of the report by name; ``report.json``, which marks the folder, first."""
    text = {"report.json": json_text(result), "report.html": ""}
    names = record_names(run.key for run in result.runs)
    for name, run in zip(names, result.runs, strict=True):
        if run.records is not None:
            text[name] = "".join(f"{_json(record)}\n" for record in run.records)
    text["report.html"] = page(result)
    # a lone surrogate (a strange file name) becomes \udcxx, which JSON reads back
    return {name: value.encode("utf-8", "backslashreplace") for name, value in text.items()}


def json_text(result: Result) -> str:
    """Return the text of ``report.json``."""
    return _json(result.to_dict(), indent=2) + "\n"


def _json(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as exc:
        msg = f"`records` must be plain data, inf and nan as text, to be written as JSON: {exc}"
        raise ExperimentError(msg) from exc
