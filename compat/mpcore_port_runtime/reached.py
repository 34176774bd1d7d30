"""Which Parameters a loss hangs on: torch gives the others no gradient, MindSpore gives zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["is_without", "not_reached"]


def not_reached(value: Any, params: Iterable[Any]) -> set[int]:
    """Return the ids of Parameters that no way through a value's graph leads to.

    None in a compiled run, which has no such graph.
    It is asked while MindSpore records what is differentiated.
    """
    node = getattr(value, "_grad_node", None)
    if node is None:
        return set()
    seen, waiting = {_number(node)}, [node]
    while waiting:
        for above, _ in waiting.pop().next_functions:
            if above is not None and _number(above) not in seen:
                seen.add(_number(above))
                waiting.append(above)
    leaves = ((param, getattr(param, "_grad_node", None)) for param in params)
    return {id(param) for param, leaf in leaves if leaf is None or _number(leaf) not in seen}


def _number(node: Any) -> Any:
    return node._unique_id()


def is_without(param: Any, grad: Any, unreached: set[int]) -> bool:
    """Return whether torch has no gradient here; what several ranks average stays in all."""
    if getattr(param, "mpcore_ranks", 1) != 1 or id(param) not in unreached:
        return False
    return not bool((grad != 0).any())
