"""Sizes of tensors: torch takes ``torch.Tensor(x.size())`` for sizes, a tuple for values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["HANDED", "are_handed", "is_size", "sized"]

HANDED = "a torch.Size that is handed in means sizes in torch; a tuple means values here"

# Of spaces of gym the shape is a tuple, no torch.Size.
_SHAPE = re.compile(r"(\.size\(\)|(?<!space)\.shape)$")
_NAMED = re.compile(r"(size|shape|dim)s?$")
_DEPTH = 6


def sized(old: cst.Call, new: cst.Call, at: At) -> cst.Call:
    """Return the call with a shape written out: a shape means sizes in torch, a tuple values."""
    args = new.args
    if len(args) != 1 or args[0].star or not is_size(old.args[0].value, at):
        return new
    return new.with_changes(args=[args[0].with_changes(star="*")])


def is_size(node: Any, at: At, depth: int = _DEPTH) -> bool:
    """Return whether an expression gives a ``torch.Size``: a part of one, and a sum, is one."""
    if depth == 0:
        return False
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, cst.Add) and is_size(node.left, at, depth - 1)
    if isinstance(node, cst.Subscript):
        parts = [isinstance(one.slice, cst.Slice) for one in node.slice]
        return parts == [True] and is_size(node.value, at, depth - 1)
    if isinstance(node, cst.Name):
        found = [one for one in at.names.origins(node) if one is not node]
        return bool(found) and all(is_size(one, at, depth - 1) for one in found)
    if isinstance(node, cst.Call) and at.names.called(node) == "torch.Size":
        return True
    return _SHAPE.search(code_of(node)) is not None


def are_handed(call: cst.Call, at: At) -> bool:
    """Return whether what a type of tensors is called with may be sizes that nobody looked at."""
    given = call.args[0].value if len(call.args) == 1 and not call.args[0].star else None
    if not isinstance(given, cst.Name) or _NAMED.search(given.value) is None:
        return False
    return all(isinstance(one, cst.Name) for one in at.names.origins(given))
