"""Tensors of a dictionary that are changed through a name of their own: here the name alone is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import string_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["SharedRule"]


class SharedRule(PortRule):
    """``loss = losses["all"]; loss /= 2`` changes the dictionary's tensor too, in torch."""

    name = "shared"
    reason = "in torch the dictionary's tensor is changed, and the dictionary is read later"
    visits = (cst.AugAssign,)

    def act(self, old: cst.AugAssign, new: cst.AugAssign, at: At) -> Any:
        """Say so of one assignment."""
        if not isinstance(old.target, cst.Name):
            return None
        found = at.names.scope(old.target).find(old.target.value)
        parts = [one.value for one in found if one.kind == "value"]
        entries: list[Any] = [part for part in parts if _is_entry(part)]
        if not entries or at.values.kind(old.target) == "neutral":
            return None
        if any(_is_read_behind(part.value, old, at) for part in entries):
            at.unproven(self, old, self.reason)
        return None


def _is_entry(node: Any) -> bool:
    """Return whether this is an entry of a dictionary that a name holds, by a text."""
    if not isinstance(node, cst.Subscript) or not isinstance(node.value, cst.Name):
        return False
    index = node.slice[0].slice
    return isinstance(index, cst.Index) and string_of(index.value) is not None


def _is_read_behind(holder: cst.Name, place: cst.CSTNode, at: At) -> bool:
    """Return whether a name is read behind a place of its own scope."""
    scope = at.names.scope(holder)
    same = [n for n in at.names.by_type[cst.Name] if n.value == holder.value]
    later = [n for n in same if at.names.scope(n) is scope and at.line(n) > at.line(place)]
    return any(not isinstance(at.names.parents.get(n), cst.AssignTarget) for n in later)
