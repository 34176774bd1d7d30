"""Tables in plain text, for what ``str()`` of a result shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["in_columns"]


def in_columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, ruled: bool = True
) -> list[str]:
    """Return a line for the head and for each row, cells below one another.

    Args:
        head: what stands above each column.
        rows: as many cells each.
        ruled: whether a line of dashes parts the head from the rows.
    """
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    rule = [tuple("-" * width for width in widths)] if ruled else []
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rule, *rows)
    ]
