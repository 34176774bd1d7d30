"""What changed between two results, as a page: ``templates/changes.html.j2``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore._lib.files import write_text
from mpcore.errors import ExperimentError
from mpcore.tools.experiment.answer import check_place
from mpcore.tools.report.changes_words import (
    known_rows,
    number_rows,
    split_verdict,
    verdicts_line,
)
from mpcore.tools.report.svg import HEAT, PALETTE
from mpcore.tools.report.templating import templates
from mpcore.tools.report.view import look_of

if TYPE_CHECKING:
    from pathlib import Path

    from mpcore.tools.report.changes import Changes

__all__ = ["changes_page", "check_page", "write_page"]

_GENERATOR = "mpcore report"  # by which such a page is known
_HEAD = 1000  # characters of a page in which it stands


def check_page(path: Path) -> None:
    """Refuse a page that cannot be written, or that would replace something else."""
    if path.suffix != ".html":
        msg = f"`--output` must be a file that ends in .html, got {str(path)!r}"
        raise ExperimentError(msg)
    check_place("output", path, _is_earlier)


def write_page(path: Path, changes: Changes, a: str, b: str) -> None:
    """Write the page whole, or not at all; see ``check_page`` and ``changes_page``."""
    text = changes_page(changes, a, b)
    try:
        # a lone surrogate (a strange file name) has no UTF-8
        write_text(path, text.encode("utf-8", "backslashreplace").decode("utf-8"))
    except OSError as exc:
        msg = f"`--output` {str(path)!r} could not be written: {exc}; choose another one"
        raise ExperimentError(msg) from exc


def _is_earlier(path: Path) -> bool:
    try:
        return f'content="{_GENERATOR}"' in path.read_text(encoding="utf-8")[:_HEAD]
    except (OSError, ValueError):
        return False


def changes_page(changes: Changes, a: str, b: str) -> str:
    """Return the page, complete in itself.

    Args:
        changes: what changed.
        a: where the first result lies, as it was given.
        b: where the second does.
    """
    pairs = [
        (pair, [(*split_verdict(verdict), look_of(verdict or "")) for verdict in (pair.a, pair.b)])
        for pair in changes.pairs
    ]
    return (
        templates()
        .get_template("changes.html.j2")
        .render(
            generator=_GENERATOR,
            places=(a, b),
            changes=changes,
            headline=verdicts_line(changes),
            pairs=pairs,
            numbers=number_rows(changes),
            known=known_rows(changes),
            palette=PALETTE,
            heat=HEAT,
        )
    )
