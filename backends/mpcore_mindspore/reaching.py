"""Which Parameters a loss hangs on: torch gives the others no gradient, MindSpore gives zeros."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from mpcore.errors import MpcoreWarning

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["decayed", "not_reached", "warn_of_decay"]

_SHOWN = 5


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


def decayed(optimizer: Any) -> list[bool]:
    """Return for each Parameter of an optimizer whether it decays it."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is not None:  # of mindspore.experimental, and of ports
        ids = {id(p) for g in groups if g.get("weight_decay") for p in g["params"]}
        return [id(param) in ids for param in optimizer.parameters]
    if not getattr(optimizer, "exec_weight_decay", False):
        return [False] * len(optimizer.parameters)
    return [bool(flag) for flag in optimizer.decay_flags]


def warn_of_decay(loss: Any, params: Sequence[Any], decays: Sequence[bool]) -> None:
    """Warn of Parameters that a loss does not reach and weight decay moves all the same."""
    if not any(decays):
        return
    left = not_reached(loss, params)
    pairs = zip(params, decays, strict=True)
    moved = [p.name for p, d in pairs if d and p.requires_grad and id(p) in left]
    if moved:
        names = ", ".join(moved[:_SHOWN]) + (", ..." if len(moved) > _SHOWN else "")
        msg = (
            f"the loss does not reach {names} ({len(moved)} of {len(params)}): MindSpore gives "
            "zeros as gradients, and weight decay moves them; torch leaves them alone. Leave them "
            "out of the optimizer, or set requires_grad to False"
        )
        warnings.warn(msg, MpcoreWarning, stacklevel=2)
