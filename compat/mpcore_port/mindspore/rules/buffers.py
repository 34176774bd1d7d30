"""Buffers that a network assigns anew: ``self.center = ...`` behind ``register_buffer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.in_place import operator_of
from mpcore_port.mindspore.rules.place import PortRule, lineage, wording
from mpcore_port.names import code_of, string_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["BufferRule"]


class BufferRule(PortRule):
    """A buffer takes another tensor by the runtime: a Cell raises where one is assigned."""

    name = "buffer"
    reason = "a Cell takes no tensor for a buffer that it has"
    visits = (cst.Assign, cst.AugAssign)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one assignment of an attribute of ``self``."""
        if isinstance(old, cst.Assign) and len(old.targets) != 1:
            return None
        target = old.targets[0].target if isinstance(old, cst.Assign) else old.target
        if not isinstance(target, cst.Attribute) or code_of(target.value) != "self":
            return None
        owner = at.names.enclosing(old, cst.ClassDef)
        name = target.attr.value
        if owner is None or name not in _buffers(owner, at):
            return None
        value = code_of(new.value)
        if isinstance(old, cst.AugAssign):
            value = f"self.{name} {operator_of(new)} ({value})"
        made = cst.parse_expression(wording(at, f'port.set_buffer(self, "{name}", {value})'))
        at.note(self, old, made)
        return cst.Expr(made, semicolon=new.semicolon)


def _buffers(owner: cst.ClassDef, at: At) -> set[str]:
    """Return the names that a class, or one that it is made of, registers as buffers."""
    known = at.once(_by_class)
    return {name for one in lineage(owner, at) for name in known.get(id(one), ())}


def _by_class(at: At) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for call in at.names.callers("register_buffer"):
        owner = at.names.enclosing(call, cst.ClassDef)
        name = string_of(call.args[0].value) if call.args else None
        if owner is not None and name is not None:
            found.setdefault(id(owner), set()).add(name)
    return found
