"""Whether gradients go through a statement, or its backward pass is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.losses.afar import Graded, is_without, records
from mpcore_port.mindspore.rules.losses.names_in import read
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore_port.rule import At

__all__ = [
    "is_behind_a_pass",
    "is_ungraded",
    "records_a_pass",
]


def is_ungraded(node: cst.CSTNode, at: At) -> bool:
    """Return whether no gradients are recorded where a node stands."""
    above = at.names.ancestors(node)
    home = at.names.enclosing(node, cst.FunctionDef)
    return not records(home, at) or any(is_without(one, at) for one in above)


def records_a_pass(node: Any, changed: Any, values: Iterable[Any], at: At) -> bool:
    """Return whether gradients may go through what a node changes, or its pass is yet to come."""
    if is_ungraded(node, at):
        return False
    home = at.names.enclosing(node, cst.FunctionDef)
    if home is not None and home.name.value in ("forward", "__call__", "construct"):
        return True
    graded = at.once(Graded)
    if {code_of(changed), *read(changed)} & graded.before(node):
        return True
    if any(graded.of_value(value) for value in values):
        return True
    return not is_behind_a_pass(node, at) and any(
        at.names.enclosing(call, cst.FunctionDef) is home for call in at.names.callers("backward")
    )


def is_behind_a_pass(node: cst.CSTNode, at: At) -> bool:
    """Return whether nothing asks for gradients of what stands here: a backward pass is over."""
    home = at.names.enclosing(node, cst.FunctionDef)
    return is_ungraded(node, at) or any(
        isinstance(call.func, cst.Attribute)
        and at.names.enclosing(call, cst.FunctionDef) is home
        and at.line(call) < at.line(node)
        for call in at.names.callers("backward")
    )
