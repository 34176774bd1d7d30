"""Statements that move weights: they run gradients, or an optimizer's step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["MOVING", "is_step", "moves"]

MOVING = frozenset({"backward", "step", "update", "zero_grad", "unscale_", "clip_grad_norm_"})
_GAMES = re.compile(r"(^|[._])envs?(_\w+)?$")
_NETWORKS = re.compile(r"(^|[._])(model|net(work)?|module|student|teacher)$")


def moves(statement: cst.CSTNode, moving: Collection[str] = MOVING) -> bool:
    """Return whether a statement runs gradients or optimizers."""
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in moving
        and not _is_anothers(call, call.func)
        for call in calls_in(statement)
    )


def is_step(call: cst.Call) -> bool:
    """Return whether a call is an optimizer's step."""
    func = call.func
    return (
        isinstance(func, cst.Attribute)
        and func.attr.value == "step"
        and not _is_anothers(call, func)
    )


def _is_anothers(call: cst.Call, func: cst.Attribute) -> bool:
    """Return whether a method of that name is surely another thing's: a meter's, a game's.

    A network's ``step(batch)`` computes, Lightning's way; DeepSpeed's engine steps by ``step()``.
    """
    held = code_of(func.value).lower()
    if func.attr.value == "update":
        return "scaler" not in held
    if func.attr.value != "step":
        return False
    return bool(_GAMES.search(held) or (call.args and _NETWORKS.search(held)))
