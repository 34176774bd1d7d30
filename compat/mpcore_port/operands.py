"""Whether what stands in a node's place needs brackets there: ``Variable(a + b).mean()``."""

from __future__ import annotations

from typing import Any

import libcst as cst

from mpcore_port.names import code_of
from mpcore_port.refusals import parses

__all__ = ["as_operand"]

_LOOSE = (cst.IfExp, cst.Lambda, cst.NamedExpr)
_ATOM, _UNARY, _COMPARED, _NOT = 14, 11, 4, 3
_BINARY: dict[type[cst.BaseBinaryOp], int] = {
    cst.BitOr: 5,
    cst.BitXor: 6,
    cst.BitAnd: 7,
    cst.LeftShift: 8,
    cst.RightShift: 8,
    cst.Add: 9,
    cst.Subtract: 9,
    cst.Power: 12,
}
_PRODUCT = 10
"""How strongly operators bind, as in Python's reference (6.17)."""


def as_operand(old: Any, new: Any, parent: Any) -> Any:
    """Return an expression with brackets, where it binds more loosely than its place asks.

    Args:
        old: what stood there.
        new: what stands there now.
        parent: the node around ``old``.
    """
    if not isinstance(new, cst.BaseExpression) or new.lpar:
        return new
    if getattr(old, "lpar", ()) and parses(code_of(new)):  # a chain over several lines
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)
    if _strength(new) >= _asked(old, parent) or _strength(old) < _asked(old, parent):
        return new
    return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _strength(node: Any) -> int:
    if node.lpar:
        return _ATOM
    if isinstance(node, _LOOSE):
        return 0
    if isinstance(node, cst.BooleanOperation):
        return 1 if isinstance(node.operator, cst.Or) else 2
    if isinstance(node, cst.UnaryOperation):
        return _NOT if isinstance(node.operator, cst.Not) else _UNARY
    if isinstance(node, cst.Comparison):
        return _COMPARED
    if isinstance(node, cst.BinaryOperation):
        return _BINARY.get(type(node.operator), _PRODUCT)
    return _ATOM


def _asked(old: Any, parent: Any) -> int:
    """Return how strongly has to bind what stands in the place of ``old``."""
    if isinstance(parent, (cst.Attribute, cst.Subscript)):
        return _ATOM if parent.value is old else 0
    if isinstance(parent, cst.Call):
        return _ATOM if parent.func is old else 0
    if isinstance(parent, (cst.Comparison, cst.ComparisonTarget)):
        return _COMPARED + 1
    if isinstance(parent, (cst.UnaryOperation, cst.BooleanOperation)):
        return _strength(parent.with_changes(lpar=(), rpar=()))
    if isinstance(parent, cst.BinaryOperation):
        here = _BINARY.get(type(parent.operator), _PRODUCT)
        tighter = isinstance(parent.operator, cst.Power) == (parent.left is old)
        return here + tighter
    if isinstance(parent, cst.Await):
        return _ATOM
    return 1 if isinstance(parent, cst.IfExp) and parent.orelse is not old else 0
