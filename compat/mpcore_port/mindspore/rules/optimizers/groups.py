"""What a script writes into ``param_groups``: numbers are seen by the next step, lists are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below
from mpcore_port.mindspore.rules.optimizers.own_optimizers import in_own_step
from mpcore_port.mindspore.rules.place import PortRule, has_unknown_base
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_port.rule import At

__all__ = ["GroupRule"]

_OF_LIST = {"append", "extend", "insert", "remove", "reverse", "sort", "pop", "clear"}
_OF_GROUP = {"pop", "popitem", "clear", "__delitem__"}


class GroupRule(PortRule):
    """A line that changes which groups or parameters there are raises."""

    name = "parameter groups"
    reason = (
        "the optimizer of the port knows the groups that it was made with: use add_param_group, "
        "or make another optimizer"
    )
    visits = (cst.SimpleStatementLine,)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Refuse one line."""
        line = at.line(old)
        if (
            "param_groups" not in at.code
            or not any(_written(old))
            or any(e.line == line and e.kind == "refused" for e in at.edits)
            or in_own_step(old, at)
            or _is_of_plain_object(old, at)
        ):
            return None
        call = at.refuse(self, old.body[0], self.reason)
        return new.with_changes(body=[cst.Expr(cst.Call(call))])


def _is_of_plain_object(line: cst.SimpleStatementLine, at: At) -> bool:
    """Return whether a line gives ``self`` an attribute of that name, and it is no optimizer.

    A class around an optimizer holds its groups: ``self.param_groups = optimizer.param_groups``.
    """
    small, owner = line.body[0], at.names.enclosing(line, cst.ClassDef)
    if len(line.body) > 1 or not isinstance(small, cst.Assign):
        return False
    if owner is None or has_unknown_base(owner, at):
        return False
    named = all(code_of(target.target) == "self.param_groups" for target in small.targets)
    return named and not any("Optimizer" in base for base in at.names.bases(owner))


def _written(line: cst.SimpleStatementLine) -> Iterator[bool]:
    for small in line.body:
        targets: list[Any] = []
        if isinstance(small, cst.Assign):
            targets = [target.target for target in small.targets]
        elif isinstance(small, (cst.AugAssign, cst.Del)):
            targets = [small.target]
        for held in _held(targets):
            yield _is_groups(held)
            if isinstance(held, cst.Subscript) and not isinstance(small, cst.AugAssign):
                yield _is_groups(held.value) or _is_params(held)
        for node in below(small):
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                name, holder = node.func.attr.value, node.func.value
                yield name in _OF_LIST and _is_groups(holder)
                inside = isinstance(holder, cst.Subscript) and _is_groups(holder.value)
                yield name in _OF_GROUP and inside


def _held(targets: list[Any]) -> Iterator[Any]:
    for target in targets:
        if isinstance(target, (cst.Tuple, cst.List)):
            yield from _held([element.value for element in target.elements])
        else:
            yield target


def _is_groups(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == "param_groups"


def _is_params(node: cst.Subscript) -> bool:
    """Return whether it is the list of parameters of a group."""
    held = node.value
    inside = isinstance(held, cst.Subscript) and _is_groups(held.value)
    return inside and code_of(node.slice[0]).strip("'\"") == "params"
