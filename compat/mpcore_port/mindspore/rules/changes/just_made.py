"""``self.loss = a * b; self.loss.add_(c)``: attributes that are changed in place when just made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.changes.fresh import is_fresh
from mpcore_port.mindspore.rules.changes.methods_in_place import PLAIN
from mpcore_port.mindspore.rules.changes.others_hold import other_holders
from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of, dotted

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["JustMadeRule"]


class JustMadeRule(PortRule):
    """A line of methods in place becomes an assignment, which gradients go through."""

    name = "just made"
    reason = "the function has just made it, and nothing else holds it: it is made anew"
    visits = (cst.SimpleStatementLine,)

    def act(self, old: cst.SimpleStatementLine, new: Any, at: At) -> Any:
        """Write one line as an assignment."""
        line = old.body[0] if len(old.body) == 1 else None
        if not isinstance(line, cst.Expr):
            return None
        held = _changed(line.value)
        if held is None or not _is_just_made(held, old, at) or _is_held(held, old, at):
            return None
        value = new.body[0].value.visit(_Plain())
        made = cst.Assign([cst.AssignTarget(held)], value)
        at.note(self, old, made)
        return new.with_changes(body=[made])


def _changed(node: Any) -> cst.Attribute | None:
    """Return ``self.x`` of ``self.x.add_(a).clamp_(b)``; None for others."""
    links = 0
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        name = node.func.attr.value
        if not name.endswith("_") or name[:-1] not in PLAIN:
            return None
        node, links = node.func.value, links + 1
    is_own = isinstance(node, cst.Attribute) and dotted(node) == f"self.{node.attr.value}"
    return node if links and is_own else None


def _is_held(held: cst.Attribute, place: Any, at: At) -> bool:
    """Return whether the class gives it another holder; who asks the object has earlier ones."""
    owner = at.names.enclosing(place, cst.ClassDef)
    found = [one.made for one in other_holders(held, place, at)]
    return any(owner is None or owner in at.names.ancestors(made) for made in found)


def _is_just_made(held: cst.Attribute, place: Any, at: At) -> bool:
    """Return whether the last line that sets an attribute stands before, in a block around."""
    home = at.names.enclosing(place, cst.FunctionDef)
    around = list(at.names.ancestors(place))
    set_here = [
        node
        for node in at.names.by_type[cst.Assign]
        if any(code_of(one.target) == code_of(held) for one in node.targets)
        and at.names.enclosing(node, cst.FunctionDef) is home
        and at.line(node) < at.line(place)
    ]
    if home is None or not set_here:
        return False
    last = max(set_here, key=at.line)
    if len(last.targets) != 1 or not is_fresh(last.value, at):
        return False
    block = at.names.parents.get(at.names.statement(last))
    if block is None or not any(one is block for one in around):
        return False
    inside = around[: next(i for i, one in enumerate(around) if one is block)]
    return not any(isinstance(one, (cst.For, cst.While)) for one in inside)


class _Plain(cst.CSTTransformer):
    """Takes the underscore from the methods of a chain, not from what they are given."""

    def visit_Arg(self, node: cst.Arg) -> bool:  # noqa: N802
        """Leave arguments as they are."""
        return False

    def leave_Attribute(self, original_node: Any, updated_node: Any) -> Any:  # noqa: N802
        """Name the method that changes nothing."""
        name = updated_node.attr.value
        if not name.endswith("_"):
            return updated_node
        return updated_node.with_changes(attr=cst.Name(name[:-1]))
