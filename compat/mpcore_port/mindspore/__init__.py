"""The target ``mindspore``: PyTorch scripts to MindSpore 2.10, with the loss scale of mpcore."""

from __future__ import annotations

from typing import Any

__all__ = ["TARGET"]  # made when it is asked for


def __getattr__(name: str) -> Any:
    """Load the target only where scripts are ported: ported scripts import ``support`` alone."""
    if name == "TARGET":
        from mpcore_port.mindspore.target import TARGET

        return TARGET
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
