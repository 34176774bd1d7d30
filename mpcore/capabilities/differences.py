"""Known differences of frameworks: data in ``differences.toml``, proofs in the backends."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from mpcore.errors import check_choice

__all__ = ["DIFFERENCES", "LEVELS", "Difference", "Shown", "differences_of"]

LEVELS = ("wrong", "convention")


@dataclass(frozen=True)
class Difference:
    """One difference that is known.

    Attributes:
        name: of its entry, and of its proof in the backend.
        backend: whose it is.
        what: in one sentence.
        level: one of ``LEVELS``.
        formats: compute dtypes under which it shows.
        quantities: numbers of a comparison that it explains; empty for none.
        arrays: in which it shows there.
        size: in words.
        reference: where it is known from.
        way_round: what to do.
    """

    name: str
    backend: str
    what: str
    level: str
    formats: tuple[str, ...]
    quantities: tuple[str, ...]
    arrays: tuple[str, ...]
    size: str
    reference: str
    way_round: str

    def __post_init__(self) -> None:
        """Refuse an unknown level."""
        check_choice("difference.level", self.level, LEVELS)

    @property
    def title(self) -> str:
        """Name and level in words."""
        words = self.name.replace("_", " ")
        return f"{words}, wrong in {self.backend}" if self.level == "wrong" else words


@dataclass(frozen=True)
class Shown:
    """What a proof measured on this machine.

    Attributes:
        name: of the difference.
        size: relative, dimensionless; 0 where it is not so here.
        error: why the proof did not run; empty if it did.
    """

    name: str
    size: float = 0.0
    error: str = ""


def _read() -> dict[str, Difference]:
    text = files("mpcore.capabilities").joinpath("differences.toml").read_text("utf-8")
    lists = ("formats", "quantities", "arrays")
    found: dict[str, Difference] = {}
    for name, row in tomllib.loads(text).items():
        values: dict[str, Any] = {k: tuple(v) if k in lists else v for k, v in row.items()}
        found[name] = Difference(name, **values)
    return found


DIFFERENCES = _read()
"""By name, in the order of the file."""


def differences_of(backend: str) -> list[Difference]:
    """Return the known differences of one backend."""
    return [entry for entry in DIFFERENCES.values() if entry.backend == backend]
