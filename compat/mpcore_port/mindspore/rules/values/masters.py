"""Copies of parameters that an optimizer moves in their place, as scripts of old keep them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below
from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["MastersRule"]

_COPIES = re.compile(r"\.(clone|detach|float)\(\)")
_WANTS = re.compile(r"\.requires_grad\s*=\s*True\b|\.requires_grad_\((True)?\)")


class MastersRule(PortRule):
    """``[p.clone().float().detach() for p in params]`` that are told to want gradients."""

    name = "masters"
    reason = "an optimizer of MindSpore moves Parameters alone"
    visits = (cst.ListComp,)

    def idle(self, at: At) -> bool:
        """Whether nothing wants a gradient, or the script is a port."""
        return super().idle(at) or not _WANTS.search(at.code)

    def act(self, old: cst.ListComp, new: cst.ListComp, at: At) -> Any:
        """Make Parameters in one list."""
        assign = at.names.parents.get(old)
        if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
            return None
        target = assign.targets[0].target
        if not isinstance(target, cst.Name) or not _COPIES.search(code_of(old.elt)):
            return None
        if "Parameter(" in code_of(old.elt) or not _are_told(target, assign, at):
            return None
        made = cst.parse_expression(wording(at, f"port.Parameter({code_of(new.elt)})"))
        at.note(self, old.elt, made)
        return new.with_changes(elt=made)


def _are_told(target: cst.Name, assign: cst.Assign, at: At) -> bool:
    """Return whether a loop over a list says of each of its tensors that it wants a gradient."""
    home: Any = at.names.enclosing(assign, cst.FunctionDef) or at.module
    for loop in below(home):
        if not isinstance(loop, cst.For) or code_of(loop.iter) != target.value:
            continue
        told = re.escape(code_of(loop.target)) + r"(\.data)?" + f"(?:{_WANTS.pattern})"
        if re.search(rf"(?<![\w.]){told}", code_of(loop.body)):
            return True
    return False
