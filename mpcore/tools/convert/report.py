"""What a conversion of weights did, array by array."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Converted", "Row"]


@dataclass(frozen=True)
class Row:
    """One array, and where it went.

    Attributes:
        source: its names in IN; several were joined.
        target: its names in OUT.
        shape: in the neutral layout, torch's.
        changes: what happened to it on the way, a few words each.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    shape: tuple[int, ...]
    changes: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the row in words; empty if name and layout are the same."""
        old, new = " + ".join(self.source), " + ".join(self.target)
        words = f" ({', '.join(self.changes)})" if self.changes else ""
        if old != new:
            return f"renamed: {old} -> {new}{words}"
        return f"changed: {old}{words}" if words else ""


@dataclass
class Converted:
    """What was written, and what was not.

    Attributes:
        matched: how arrays found their places: ``"layers"`` (both models were built),
            ``"names"``, ``"order"`` (of layers), or ``"kept"`` (no model was given).
        rows: what was written.
        missing: names of the model that the file does not have; OUT has their first values.
        surplus: names of the file that the model does not have.
        tied: name by the name of the array that it is.
        dropped: what the target has no place for, with the reason.
        notes: what else is to know, a sentence each.
    """

    matched: str
    rows: list[Row] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    tied: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def names(self) -> dict[str, str]:
        """Name in OUT by name in IN, of arrays that were not joined."""
        pairs = [(row.source, row.target) for row in self.rows]
        return {old[0]: new[0] for old, new in pairs if len(old) == len(new) == 1}

    @property
    def complete(self) -> bool:
        """Whether all names matched."""
        return not (self.missing or self.surplus)

    def lines(self) -> list[str]:
        """Return the report."""
        how = {"kept": "names and layouts kept"}.get(self.matched, f"matched by {self.matched}")
        lines = [f"{len(self.rows)} arrays, {how}"]
        lines += filter(None, (row.line() for row in self.rows))
        lines += [f"tied: {name} is {other}" for name, other in self.tied.items()]
        lines += [f"dropped: {name}, {why}" for name, why in self.dropped.items()]
        lines += [f"missing: {name} is not in the file" for name in self.missing]
        lines += [f"surplus: {name} is not in the model" for name in self.surplus]
        return lines + self.notes

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self) | {"complete": self.complete}
