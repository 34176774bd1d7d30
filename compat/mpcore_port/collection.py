"""When Python looks for garbage while trees are read and reports are made."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["rare_collection"]


@contextlib.contextmanager
def rare_collection() -> Iterator[None]:
    """Let the collector look less often: trees are many objects, and live until a file is done."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
