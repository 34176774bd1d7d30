"""The command ``mpcore report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mpcore._lib.records import to_plain
from mpcore.errors import ExperimentError
from mpcore.tools.experiment.answer import Answer
from mpcore.tools.experiment.options import Format  # noqa: TC001  # typer reads it
from mpcore.tools.experiment.progress import say
from mpcore.tools.report.changes import changes
from mpcore.tools.report.changes_table import changes_table
from mpcore.tools.report.result import Result

__all__ = ["report"]


_IS = "Folder of mpcore compare, its report.json, or what --format json printed."
_A = Annotated[Path, typer.Argument(metavar="A", help=_IS, show_default=False)]
_B = Annotated[Path, typer.Argument(metavar="B", help=_IS, show_default=False)]
_Page = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.html",
        help="File for a page of it: a new one, or an earlier page of this command.",
        show_default=False,
    ),
]


def report(a: _A, b: _B, form: Format = "text", output: _Page = None) -> int:
    """Set two results of mpcore compare side by side: what changed from A to B.

    Verdicts that changed come first, then numbers that moved beyond their tolerance, known
    differences gained and lost, and what the two were made under. Nothing is run.

    Exit codes: 0 every pair has the same verdict in both, 1 a verdict changed or a pair is in one
    of them alone, 2 the input was wrong.

    Example: mpcore report before after

    Example: mpcore report before/report.json after/report.json --output changes.html

    Example: mpcore report before after --format json
    """
    answer = Answer("mpcore-report", form, None)
    # Here, not above, and only where wanted: the page's colours come with matplotlib.
    if output is not None:
        from mpcore.tools.report.changes_page import check_page, write_page

        check_page(output)
    found = changes(_read(a), _read(b))
    if output is not None:
        write_page(output, found, str(a), str(b))
    plain = to_plain(found) | {"a": str(a), "b": str(b), "changed": bool(found.verdicts)}
    answer.tell(plain, lambda console: console.print(changes_table(found)))
    if output is not None:
        say(answer.console, f"page: {output}")
    return 1 if found.verdicts else 0


def _read(place: Path) -> Result:
    """Return the result in a file, or in the ``report.json`` of a folder.

    Raises:
        ExperimentError: there is none; names the file.
    """
    path = place / "report.json" if place.is_dir() else place
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        where = f"folder {str(place)!r} without a report.json" if path != place else repr(str(path))
        msg = f"a result of mpcore compare must be there, got {where}"
        raise ExperimentError(msg) from exc
    except OSError as exc:
        msg = f"a result of mpcore compare must be readable, got {str(path)!r}: {exc}"
        raise ExperimentError(msg) from exc
    except (ValueError, RecursionError) as exc:
        msg = f"a result of mpcore compare must be JSON, {str(path)!r} is not: {exc}"
        raise ExperimentError(msg) from exc
    try:
        return Result.from_dict(data)
    except ExperimentError as exc:
        msg = f"{str(path)!r}: {exc}"
        raise ExperimentError(msg) from exc
