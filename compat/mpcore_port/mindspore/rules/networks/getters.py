"""``__getattr__`` of a network's own: a Cell asks itself for names that it has not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, has_unknown_base, is_module_class, wording

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["GetterRule"]


class GetterRule(PortRule):
    """``def __getattr__(self, name)`` gets ``@port.getter``."""

    name = "getter"
    reason = "a Cell asks itself for names that it has not; a Module of torch asks for nothing"
    visits = (cst.FunctionDef,)

    def act(self, old: cst.FunctionDef, new: cst.FunctionDef, at: At) -> Any:
        """Decorate the method of a class that is, or may be, a network."""
        if old.name.value != "__getattr__" or old.decorators:
            return None
        owner = at.names.enclosing(old, cst.ClassDef, cst.FunctionDef)
        if not isinstance(owner, cst.ClassDef):
            return None
        if not (is_module_class(owner, at) or has_unknown_base(owner, at)):
            return None
        made = cst.Decorator(cst.parse_expression(wording(at, "port.getter")))
        at.note(self, old.name, "@port.getter")
        return new.with_changes(decorators=[made], lines_after_decorators=[])
