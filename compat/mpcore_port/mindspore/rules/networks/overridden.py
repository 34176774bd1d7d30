"""``train`` and ``eval`` of a network's own: MindSpore's set_train calls neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, has_unknown_base, is_module_class, wording

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["OverriddenRule", "has_own_mode"]

_EVAL = "who puts the network into evaluation mode here does it without this method"


class OverriddenRule(PortRule):
    """``def train(self, mode=True)`` of a network gets ``@port.own_train``."""

    name = "own mode"
    reason = "set_train of the Cells around it, and of itself, calls it then"
    visits = (cst.FunctionDef,)

    def act(self, old: cst.FunctionDef, new: cst.FunctionDef, at: At) -> Any:
        """Decorate one method."""
        if not _sets_mode(old, at):
            return None
        if old.name.value == "eval":
            at.unproven(self, old.name, _EVAL)
            return None
        made = cst.Decorator(cst.parse_expression(wording(at, "port.own_train")))
        at.note(self, old.name, "@port.own_train")
        return new.with_changes(decorators=[made], lines_after_decorators=[])


def has_own_mode(at: At) -> bool:
    """Return whether a network of the file has a ``train`` of its own."""
    return any(_sets_mode(one, at) for one in at.names.functions.get("train", ()))


def _sets_mode(method: cst.FunctionDef, at: At) -> bool:
    """Return whether this is a network's own ``train(self, mode=True)``, or its ``eval(self)``."""
    if method.name.value not in ("train", "eval") or method.decorators:
        return False
    owner = at.names.enclosing(method, cst.ClassDef, cst.FunctionDef)
    if not isinstance(owner, cst.ClassDef):
        return False
    if not (is_module_class(owner, at) or has_unknown_base(owner, at)):
        return False
    given = [*method.params.posonly_params, *method.params.params][1:]
    if method.name.value == "eval":
        return not given
    return len(given) <= 1 and all(one.name.value == "mode" or one.default for one in given)
