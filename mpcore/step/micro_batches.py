"""A batch in equal parts along its first axis."""

from __future__ import annotations

from typing import Any

from mpcore.errors import BackendError

__all__ = ["cut", "uneven"]


def cut(item: Any, index: int, count: int) -> Any:
    """Return part ``index`` of ``count`` equal parts of a tensor or array; others as they are.

    Raises:
        BackendError: its rows cannot be cut evenly.
    """
    if not getattr(item, "shape", ()):  # no tensor, or one without rows
        return item
    rows = item.shape[0]
    if rows % count:
        raise BackendError(uneven(rows, count))
    size = rows // count
    return item[index * size : (index + 1) * size]


def uneven(rows: int, count: int) -> str:
    """Return what is said of rows that cannot be cut into so many equal parts."""
    return (
        f"`micro_batches` must divide the batch evenly, got {count} for {rows} rows; "
        "choose a divisor, or leave out the last rows"
    )
