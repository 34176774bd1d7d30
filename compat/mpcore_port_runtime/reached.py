"""Which gradients torch has not: those of Parameters that a loss does not hang on."""

from __future__ import annotations

from typing import Any

from mpcore_mindspore.shims import not_reached

__all__ = ["is_constant", "is_without", "not_reached"]


def is_without(param: Any, grad: Any, unreached: set[int]) -> bool:
    """Return whether torch has no gradient here; what several ranks average stays in all."""
    if getattr(param, "mpcore_ranks", 1) != 1 or id(param) not in unreached:
        return False
    return not bool((grad != 0).any())


def is_constant(value: Any) -> bool:
    """Return whether no graph leads to a loss: ``loss = torch.tensor(0.0)`` in place of a NaN.

    True in a compiled run as well, which has no such graph; gradients that are not zero tell.
    """
    return getattr(value, "_grad_node", None) is None
