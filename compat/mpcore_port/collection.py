"""When Python looks for garbage while trees are read and reports are made."""

from __future__ import annotations

import atexit
import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["no_last_collection", "rare_collection"]


@contextlib.contextmanager
def rare_collection() -> Iterator[None]:
    """Let the collector look less often: trees are many objects, and live until a file is done."""
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def no_last_collection() -> None:
    """Leave what is held when the process ends to the system: Python would look through it all."""
    atexit.register(gc.freeze)
