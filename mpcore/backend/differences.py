"""What proves, on the machine, that a framework differs from the others as it is known to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Differences"]


class Differences(Protocol):
    """The proofs of one framework.

    Attributes:
        PROOFS: by name of ``mpcore.capabilities.differences.DIFFERENCES``, a function that runs
            the framework on a few numbers and returns how far it lies from the right answer,
            relative; 0 where it does not differ here.
    """

    PROOFS: dict[str, Callable[[], float]]
