"""``__getattr__`` that a network has of its own."""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from mindspore import nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["getter"]


def getter(method: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Return a Cell's own ``__getattr__``, for use as a decorator: MindSpore is answered without.

    A Cell asks itself for names that it has not (mindspore/nn/cell.py, 2.10.0: ``bprop`` while it
    is made, the name of a Cell that it is given); torch's Module asks itself for nothing.
    """

    @wraps(method)
    def asked(self: Any, name: str) -> Any:
        asker = sys._getframe(1).f_globals.get("__name__", "")
        if asker.partition(".")[0] == "mindspore":
            return nn.Cell.__getattr__(self, name)
        return method(self, name)

    return asked
