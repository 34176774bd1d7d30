"""Where what runs a graph, and who hears it, find one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CAST", "HEARING", "PLAN", "RUNNER"]

CAST = "mpcore_cast"
"""Where the code of a cast holds what the plan says of it."""
RUNNER = "_mpcore_graph"
"""Where a module that runs by its graphs holds what runs them."""
PLAN = "mpcore_plan"
"""Where the code of a piece holds its plan."""
HEARING: list[Callable[[Any, tuple[Any, ...]], Any]] = []
"""Runs pieces while somebody hears them; empty otherwise."""
