"""What a search has found out, entry by entry: kept in a file, so that a second call goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mpcore.tools.experiment.job import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["Entry", "Log", "read_entries"]

Entry = dict[str, Any]
"""Plain data: ``kind``, what it is about, what was found."""


class Log:
    """Entries by kind and by what they are about; what is there is not done again.

    Args:
        emit: called with each entry, as ``emit(found=entry, known=whether it is an earlier one)``.
        earlier: entries of an earlier search of the same thing.
    """

    def __init__(self, emit: Callable[..., None], earlier: Iterable[Entry] = ()) -> None:
        self._emit = emit
        self.entries: list[Entry] = []
        self._earlier = [*earlier]
        self.reused = 0

    def once(self, kind: str, about: Entry, make: Callable[[], Entry]) -> Entry:
        """Return the entry of a kind about something; made, and told, if it is not known yet."""
        wanted = {"kind": kind, **about}
        for entry in self.entries:
            if all(entry.get(name) == value for name, value in wanted.items()):
                return entry
        for entry in self._earlier:
            if all(entry.get(name) == value for name, value in wanted.items()):
                self.reused += 1
                return self._add(entry, known=True)
        return self._add(plain({**wanted, **make()}))

    def tell(self, kind: str, **fields: Any) -> None:
        """Add an entry that follows from others: it is never looked up."""
        self._add(plain({"kind": kind, **fields}))

    def _add(self, entry: Entry, *, known: bool = False) -> Entry:
        self.entries.append(entry)
        self._emit(found=entry, known=known)
        return entry


def read_entries(path: Path, key: str) -> list[Entry]:
    """Return what a log file holds of one search; a line that was cut off by a kill is left out."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.pop("key", None) == key:
            found.append(entry)
    return found
