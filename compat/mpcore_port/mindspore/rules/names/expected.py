"""Imports that may fail: what a script does then is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.handlers import caught, raises
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["bound_before", "bound_without", "failure_is_expected", "is_asked_for"]

_CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException", ""}
_ENDS = ("sys.exit", "exit", "quit", "os._exit")


def failure_is_expected(node: cst.CSTNode, at: At) -> bool:
    """Return whether an import stands in a ``try`` that goes on without what it brings."""
    handler = _handler(node, at)
    return handler is not None and not _gives_up(handler)


def bound_without(node: cst.CSTNode, at: At) -> frozenset[str]:
    """Return the names that the handler of an import's failure binds itself: ``fast = None``."""
    handler: Any = _handler(node, at)
    return frozenset(
        name.value
        for name in at.names.by_type[cst.Name]
        if isinstance(at.names.parents[name], _BINDS) and handler in at.names.ancestors(name)
    )


def bound_before(node: cst.CSTNode, at: At) -> frozenset[str]:
    """Return the names that have a value of their own above an import: it stays where that fails.

    ``fast = None`` and ``try: from flash_attn import fast`` with a handler that passes.
    """
    bindings = at.names.scope(node).bindings
    return frozenset(
        name
        for name, found in bindings.items()
        if any(one.kind != "import" and at.line(one.node) < at.line(node) for one in found)
    )


_BINDS = (cst.AssignTarget, cst.AsName, cst.ImportAlias, cst.FunctionDef, cst.ClassDef)


def _handler(node: cst.CSTNode, at: At) -> cst.ExceptHandler | None:
    """Return what catches the failure of an import where it stands, or None."""
    below = node
    for above in at.names.ancestors(node):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            return None
        if isinstance(above, cst.Try) and below is above.body:
            catching = [one for one in above.handlers if caught(one) & _CAUGHT]
            if catching:
                return catching[0]
        below = above
    return None


def _gives_up(handler: cst.ExceptHandler) -> bool:
    """Return whether a handler raises, or ends the run."""
    if raises(handler):
        return True
    lines = [line for line in handler.body.body if isinstance(line, cst.SimpleStatementLine)]
    calls = [
        small.value.func
        for line in lines
        for small in line.body
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call)
    ]
    return any(code_of(func) in _ENDS for func in calls)


def is_asked_for(node: cst.CSTNode, at: At) -> bool:
    """Return whether all that is asked of a name is whether it is there: ``if amp is not None``."""
    parent: Any = at.names.parents.get(node)
    if isinstance(parent, cst.Comparison) and parent.left is node and len(parent.comparisons) == 1:
        one = parent.comparisons[0]
        is_none = isinstance(one.comparator, cst.Name) and one.comparator.value == "None"
        return is_none and isinstance(one.operator, (cst.Is, cst.IsNot, cst.Equal, cst.NotEqual))
    if isinstance(parent, cst.UnaryOperation):
        return isinstance(parent.operator, cst.Not)
    child: Any = node
    while isinstance(parent, cst.BooleanOperation):
        child, parent = parent, at.names.parents.get(parent)
    if isinstance(parent, cst.UnaryOperation):
        return isinstance(parent.operator, cst.Not)
    return isinstance(parent, (cst.If, cst.While, cst.IfExp, cst.Assert)) and parent.test is child
