"""Regions that somebody's `with` has open, and the end of those whose own end a fault has met.

Python calls ``__exit__`` like any other function: an interrupt that is raised at its first
instruction leaves autocast and dispatch modes on, for the rest of the process. Whether a region is
still wanted can be told all the same: a ``with`` statement keeps what it will call at its end, and
lets go of it when it is over, however it went.
"""

from __future__ import annotations

import threading
import weakref
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_torch.calls import ThreadState

__all__ = ["OPENED", "Both", "Region", "end_left"]


class _Opened(threading.local):
    """The regions that are open in a thread, the innermost last.

    Of each a reference to what lives as long as somebody may still end it, and the thread's state
    before it. Plain tuples: an object more is a tenth of what a region costs.
    """

    def __init__(self) -> None:
        self.regions: list[tuple[weakref.ref[Any], ThreadState | None]] = []


OPENED = _Opened()
"""Of this thread; each step asks, and enters no other file where there are none."""


def end_left() -> None:
    """Put back what regions have changed in this thread that nobody is inside of any more."""
    regions = OPENED.regions
    while regions:
        alive, thread = regions[-1]
        if alive() is not None:
            return
        if thread is not None:
            thread.put_back()
        regions.pop()  # last: after a fault before this it is done again


class _End:
    """``Region.__exit__``: each ``with`` statement gets an end of its own, which it alone keeps."""

    def __get__(self, region: Region | None, owner: type) -> Callable[..., bool]:
        if region is None:  # contextlib.ExitStack asks the class, and keeps the region
            return _leave
        end = partial(_leave, region)
        region.alive = weakref.ref(end)
        return end


class Both:
    """Two contexts as one; no generator, whose end would come when it is collected."""

    def __init__(self, outer: Any, inner: Any) -> None:
        self._outer, self._inner = outer, inner

    def __enter__(self) -> Any:
        """Enter both; what the inner one returns."""
        self._outer.__enter__()
        return self._inner.__enter__()

    def __exit__(self, *exc: Any) -> None:
        """Leave both."""
        try:
            self._inner.__exit__(*exc)
        finally:
            self._outer.__exit__(*exc)


class Region:
    """A context that nobody has to end: a fault at its own end is mended by the next call.

    It is a decorator too. Cost: 3 to 4 us over that of torch.autocast alone, which is 2.2.

    Attributes:
        alive: of what the ``with`` statement that asked last keeps; None where it is another way.
    """

    __slots__ = ("__weakref__", "_context", "_mine", "_thread", "alive")

    __exit__ = _End()

    def __init__(self, thread: Callable[[], ThreadState | None], context: Any) -> None:
        """Enter nothing yet.

        Args:
            thread: looks at the state of the thread.
            context: what is entered, again and again; no generator.
        """
        self._thread, self._context = thread, context
        self._mine: list[Any] = []
        self.alive: weakref.ref[Any] | None = None

    def __enter__(self) -> Any:
        """Enter it; what it returns."""
        alive, self.alive = self.alive, None
        if alive is None or alive() is None:  # no `with` statement has asked for the end
            alive = weakref.ref(self)
        opened = (alive, self._thread())
        OPENED.regions.append(opened)
        self._mine.append(opened)
        return self._context.__enter__()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` such that it runs in here."""

        @wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return inside


def _leave(region: Region, *exc: Any) -> bool:
    """End what ``region`` has entered last."""
    opened = region._mine.pop()
    result = bool(region._context.__exit__(*exc))
    regions = OPENED.regions
    if regions and regions[-1] is opened:
        del regions[-1]
    elif opened in regions:
        regions.remove(opened)
    return result
