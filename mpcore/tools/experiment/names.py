"""Names of builders: a backend, or several models of one: ``torch``, ``torch_a``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.backend.backend import backend_names

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["backend_of", "names_for"]


def backend_of(name: str) -> str:
    """Return the backend that ``name`` is built for; ``""`` if it is none's.

    Examples:
        >>> backend_of("torch_a"), backend_of("torch"), backend_of("block")
        ('torch', 'torch', '')
    """
    known = [one for one in backend_names() if name == one or name.startswith(f"{one}_")]
    return max(known, key=len, default="")


def names_for(names: Iterable[str], backend: str) -> list[str]:
    """Return those of ``names`` that are models of ``backend``, in order."""
    return sorted(name for name in names if backend_of(name) == backend)
