"""All that compatibility shims and ported scripts import of this backend."""

from __future__ import annotations

from mpcore_mindspore.executors import _pynative_executor as pynative_executor
from mpcore_mindspore.executors import is_grad_enabled
from mpcore_mindspore.guard import guarded
from mpcore_mindspore.reaching import not_reached

__all__ = ["guarded", "is_grad_enabled", "not_reached", "pynative_executor"]
