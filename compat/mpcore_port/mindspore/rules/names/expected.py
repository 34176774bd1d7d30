"""Imports that may fail: what a script does then is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["bound_without", "failure_is_expected"]

_CAUGHT = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
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


_BINDS = (cst.AssignTarget, cst.AsName, cst.ImportAlias, cst.FunctionDef, cst.ClassDef)


def _handler(node: cst.CSTNode, at: At) -> cst.ExceptHandler | None:
    """Return what catches the failure of an import where it stands, or None."""
    below = node
    for above in at.names.ancestors(node):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            return None
        if isinstance(above, cst.Try) and below is above.body:
            caught = [one for one in above.handlers if _catches(one)]
            if caught:
                return caught[0]
        below = above
    return None


def _catches(handler: cst.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = [handler.type]
    if isinstance(handler.type, cst.Tuple):
        kinds = [element.value for element in handler.type.elements]
    return any(code_of(kind) in _CAUGHT for kind in kinds)


def _gives_up(handler: cst.ExceptHandler) -> bool:
    """Return whether a handler raises, or ends the run."""
    for line in handler.body.body:
        for small in getattr(line, "body", ()) if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Raise):
                return True
            call = small.value if isinstance(small, cst.Expr) else None
            if isinstance(call, cst.Call) and code_of(call.func) in _ENDS:
                return True
    return False
