"""``__getstate__`` and ``__setstate__`` of a network's own, by which it is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, is_module_class, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["OwnStateRule"]

_METHODS = {"__getstate__": "port.state_of", "__setstate__": "port.set_state"}


class OwnStateRule(PortRule):
    """``def __setstate__(self, state)`` of a network gets ``@port.own_state``."""

    name = "own state"
    reason = "the state of a Cell is a pair, a module's is a dictionary"
    visits = (cst.FunctionDef, cst.Call)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Decorate one method, or write what it calls of its base."""
        if isinstance(old, cst.Call):
            return self._of_base(old, new, at)
        owner = at.names.enclosing(old, cst.ClassDef, cst.FunctionDef)
        if old.name.value not in _METHODS or not isinstance(owner, cst.ClassDef):
            return None
        if old.decorators or not is_module_class(owner, at):
            return None
        made = cst.Decorator(cst.parse_expression(wording(at, "port.own_state")))
        at.note(self, old.name, "@port.own_state")
        return new.with_changes(decorators=[made], lines_after_decorators=[])

    def _of_base(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        func = old.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _METHODS:
            return None
        if not isinstance(func.value, cst.Call) or code_of(func.value.func) != "super":
            return None
        home = at.names.enclosing(old, cst.FunctionDef)
        owner = at.names.enclosing(old, cst.ClassDef)
        if home is None or owner is None or not is_module_class(owner, at):
            return None
        own = cst.Arg(cst.Name(home.params.params[0].name.value))
        to = cst.parse_expression(wording(at, _METHODS[func.attr.value]))
        made = new.with_changes(func=to, args=[own, *new.args])
        at.note(self, old, made)
        return made
