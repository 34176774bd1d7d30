"""Runs the proofs of the known differences of one backend, on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.backend.parts import DIFFERENCES
from mpcore.capabilities.differences import Shown, differences_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpcore.backend.backend import Backend

__all__ = ["proved"]


def proved(backend: Backend) -> list[Shown]:
    """Return what every proof of ``backend`` measures; empty for one that has none.

    A proof that cannot be run is told with its error: then nothing is known here.
    """
    part = DIFFERENCES.find(backend)
    if part is None:
        return []
    return [_shown(entry.name, part.PROOFS) for entry in differences_of(backend.name)]


def _shown(name: str, proofs: Mapping[str, Callable[[], float]]) -> Shown:
    try:
        return Shown(name, float(proofs[name]()))
    except Exception as exc:  # what a framework raises for what it lacks has no type
        return Shown(name, error=f"{type(exc).__name__}: {' '.join(str(exc).split())}"[:300])
