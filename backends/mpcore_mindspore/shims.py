"""All that compatibility shims and ported scripts import of this backend."""

from __future__ import annotations

from mpcore_mindspore.guard import guarded

__all__ = ["guarded"]
