"""What torch computes twice to save memory, computed once: the numbers are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["checkpoint", "checkpoint_sequential"]

_OF_TORCH = (
    "use_reentrant",
    "preserve_rng_state",
    "context_fn",
    "determinism_check",
    "debug",
    "early_stop",
)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return ``function(*args, **kwargs)``; all that it makes is kept for the backward pass.

    Words for torch's own way of it mean nothing; of ``context_fn`` the first context, that of the
    forward pass, is open. Source: torch/utils/checkpoint.py, torch 2.13.0.
    """
    own = {name: kwargs.pop(name) for name in _OF_TORCH if name in kwargs}
    if own.get("context_fn") is None:
        return function(*args, **kwargs)
    with own["context_fn"]()[0]:
        return function(*args, **kwargs)


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: Any = None, **kwargs: Any
) -> Any:
    """Return what functions, or the layers of a Sequential, make of ``input`` one after another."""
    del segments, use_reentrant, kwargs
    children = functions.cells() if hasattr(functions, "cells") else functions
    for function in children:
        input = function(input)
    return input
