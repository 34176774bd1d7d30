"""Autocast regions of others around a prepared model."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from mpcore._lib.callers import warn_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.amp.guard import Guard

__all__ = ["KINDS", "dtype_around", "none_around", "off", "refuse"]

# Asked for one where there is none, torch 2.6 raises.
_ACCELERATOR = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
KINDS = ("cpu",) if _ACCELERATOR is None else ("cpu", _ACCELERATOR.type)
"""The devices whose autocast regions are looked for."""


def dtype_around(kind: str) -> torch.dtype | None:
    """Return what the open region of a kind of device lowers to; None where there is none."""
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def refuse(guard: Guard, found: torch.dtype | None, wanted: torch.dtype) -> None:
    """Raise GuardError unless ``guard`` is open: a region lowers to another dtype."""
    guard.check(
        f"a forward pass under torch.autocast to {str(found).removeprefix('torch.')} instead of "
        f"{str(wanted).removeprefix('torch.')}",
        "leave that region out, `amp.step` and `amp.autocast()` open the right one",
    )


@contextlib.contextmanager
def none_around() -> Iterator[None]:
    """Run without the region that is open, and say so, once for each place."""
    if not torch.compiler.is_compiling():
        msg = (
            "torch.autocast around a model that is prepared by layer or by model has no effect "
            "inside it: the plan casts; leave it out, or prepare with an autocast_* policy"
        )
        warn_user(msg, "torch", "contextlib")
    with off():
        yield


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Close the regions that are open: a backward pass must not be cast once more, say."""
    with contextlib.ExitStack() as stack:
        for kind in KINDS:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
