"""``amp = None``, then ``if fp16: from apex import amp``, then ``train(model, amp)``.

What is handed on is None where the branch did not run: the name stays, and gets the port's module
where the import stood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import by_name, wording

if TYPE_CHECKING:
    from mpcore_port.names import Binding
    from mpcore_port.rule import At

__all__ = ["bound_in_a_branch", "is_bound_in_a_branch", "is_target"]

_NESTS = (cst.Tuple, cst.List, cst.Element, cst.StarredElement)
_TARGETS = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr)


def is_target(node: Any, at: At) -> bool:
    """Return whether a name gets a value here, alone or among others: ``amp, scaler = ...``."""
    child, parent = node, at.names.parents.get(node)
    while isinstance(parent, _NESTS):
        child, parent = parent, at.names.parents.get(parent)
    if isinstance(parent, cst.AsName):
        return parent.name is child
    return isinstance(parent, _TARGETS) and parent.target is child


def is_bound_in_a_branch(node: Any, at: At) -> bool:
    """Return whether a name is an import's where its branch ran, and None where it did not."""
    if type(node) is not cst.Name:
        return False
    found = at.names.meanings(node)
    imports = [one for one in found if one.kind == "import"]
    if len(imports) == len(found) or not any(_is_none(one, at) for one in found):
        return False
    return bool(imports) and all(_is_in_a_branch(one, at) for one in imports)


def bound_in_a_branch(small: cst.Import | cst.ImportFrom, at: At) -> list[Any]:
    """Return the lines that give names what the port has in place of what an import brings."""
    if isinstance(small.names, cst.ImportStar):
        return []
    lines = []
    for alias in small.names:
        bound = alias.asname.name if alias.asname else alias.name
        if not isinstance(bound, cst.Name):
            continue
        reads = [one for one in at.names.by_type[cst.Name] if one.value == bound.value]
        kept = next((one for one in reads if _is_read(one, small, at)), None)
        row = by_name(at.names.qualified(kept) or "", at.options) if kept else None
        if row is not None and (row.value or row.to):
            lines.append(cst.parse_statement(f"{bound.value} = {wording(at, row.value or row.to)}"))
    return lines


def _is_read(node: cst.Name, small: Any, at: At) -> bool:
    """Return whether a name is handed on or asked for, and may be what an import brings."""
    parent = at.names.parents.get(node)
    called = isinstance(parent, (cst.Attribute, cst.ImportAlias, cst.AsName))
    if called or is_target(node, at) or not is_bound_in_a_branch(node, at):
        return False
    return any(small in at.names.ancestors(one.node) or one.node is small for one in _all(node, at))


def _all(node: cst.Name, at: At) -> list[Binding]:
    return [one for one in at.names.meanings(node) if one.kind == "import"]


def _is_none(binding: Binding, at: At) -> bool:
    """Return whether a name gets None, and not because an import failed."""
    value = binding.value
    is_none = isinstance(value, cst.Name) and value.value == "None"
    return is_none and at.names.enclosing(binding.node, cst.ExceptHandler) is None


def _is_in_a_branch(binding: Binding, at: At) -> bool:
    """Return whether an import may not run, though it would not fail."""
    around = list(at.names.ancestors(binding.node))
    return any(isinstance(one, cst.If) for one in around) and not any(
        isinstance(one, cst.Try) for one in around
    )
