"""What changed between two results, as tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mpcore.tools.report.changes_words import (
    known_rows,
    number_rows,
    split_verdict,
    verdicts_line,
)
from mpcore.tools.report.view import look_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore.tools.report.changes import Changes
    from mpcore.tools.report.changes_words import NumberRow

__all__ = ["changes_table"]


_KEY = "noise: what it explains of that number; moved by so many times the larger of the two"


def changes_table(changes: Changes) -> Group:
    """Return what changed: verdicts, numbers, known differences, and what was made otherwise."""
    line = Text(verdicts_line(changes), "bold yellow" if changes.verdicts else "bold green")
    parts: list[Any] = [line, *_verdicts(changes)]
    numbers = number_rows(changes)
    if numbers:
        parts += [Text(), *map(_number, numbers), Text(_KEY, "dim")]
    known = known_rows(changes)
    if known:
        cells = ([Text(cell) for cell in row] for row in known)
        parts += [Text(), _table(("", "known difference", "pair", "policy"), cells)]
    if changes.circumstances:
        rows = ([Text(c.name), Text(c.a or "-"), Text(c.b or "-")] for c in changes.circumstances)
        parts += [Text(), _table(("made under", "A", "B"), rows)]
    return Group(*parts)


def _verdicts(changes: Changes) -> list[Any]:
    if not changes.verdicts:
        return []
    rows, notes = [], []
    for pair in changes.verdicts:
        names = " and ".join(pair.names)
        sides = [split_verdict(verdict) for verdict in (pair.a, pair.b)]
        cells = [Text(kind, look_of(kind)[0]) for kind, _ in sides]
        rows.append([Text(names), Text(pair.policy), *cells])
        notes += [
            Text(f"{names}, {pair.policy}, {side}: {reason}")
            for side, (_, reason) in zip("AB", sides, strict=True)
            if reason
        ]
    return [Text(), _table(("pair", "policy", "A", "B"), rows), *notes]


def _number(row: NumberRow) -> Text:
    where = f"\n  worst in {row.where}" if row.where else ""
    return Text(
        f"{row.pair}, {row.policy}, {row.name}: A {row.a}, B {row.b}: {row.moved}{where}",
    )


def _table(names: Iterable[str], rows: Iterable[Iterable[Text]]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1), header_style="bold")
    for name in names:
        shown.add_column(name, overflow="fold", vertical="top")
    for row in rows:
        shown.add_row(*row)
    return shown
