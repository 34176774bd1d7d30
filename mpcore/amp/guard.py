"""Who may move or change a prepared model: its own step, a host's plugin, or who says so."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mpcore.errors import GuardError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Guard"]


class Guard:
    """Refuses what would move or change a prepared model past its steps.

    Backends put checks of it where that happens (an optimizer's own step, a cast of the model),
    so that a step pays for one look at a number.

    Attributes:
        open: how many regions hold it open; 0 refuses.
    """

    __slots__ = ("open",)

    def __init__(self) -> None:
        """Begin closed."""
        self.open = 0

    def check(self, what: str, instead: str) -> None:
        """Raise GuardError unless the guard is open.

        Args:
            what: would happen, as the beginning of a sentence: ``"`optimizer.step()`"``.
            instead: the call to use: ``"call `amp.step(loss_fn, ...)`"``.
        """
        if not self.open:
            msg = (
                f"{what} would move or change a prepared model past its guarantee; {instead}; "
                "who means it writes `with amp.unguarded():`, who is done `amp.release()`"
            )
            raise GuardError(msg)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let everything pass for a while; regions nest."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
