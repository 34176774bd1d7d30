"""``p.data`` of a Parameter: what is read from it is a copy, what is set is assigned to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.changes.states import is_live_entry, is_live_name
from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.mindspore.rules.values.kept_names import (
    SETTINGS,
    is_data_of_anything,
    is_kept_name,
)
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = [
    "DataRule",
    "KeptDataRule",
    "changed_line",
    "operator_of",
]

_OWN = "in torch it is the network's own tensor"

_KEPT_BY = "in torch the tensor itself is changed, and something else holds it"


class DataRule(PortRule):
    """``param.data = value`` assigns values; a method in place that was rewritten, too."""

    name = "data"
    reason = "a Parameter is assigned its values"
    visits = (cst.SimpleStatementLine, cst.SimpleStatementSuite)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite the assignments of one line."""
        body, changed = [], False
        for before, small in zip(old.body, new.body, strict=False):
            made = self._small(before, small, at)
            changed = changed or made is not None
            body.append(small if made is None else made)
        return new.with_changes(body=body) if changed and len(old.body) == len(new.body) else None

    def _small(self, old: Any, new: Any, at: At) -> Any:
        if isinstance(new, cst.Expr) and isinstance(new.value, cst.NamedExpr):
            if isinstance(old.value, cst.NamedExpr):
                return None
            named: Any = new.value
            bare, target = named.value, named.target
            return cst.Assign([cst.AssignTarget(target)], bare, semicolon=new.semicolon)
        if isinstance(new, cst.Assign) and len(new.targets) == 1:
            target, operator = new.targets[0].target, ""
        elif isinstance(new, cst.AugAssign):
            target, operator = new.target, operator_of(new)
        else:
            return None
        if operator and is_data_of_anything(old.target, at):
            line = changed_line(target, new, at)
            at.note(self, old, line, reason=_KEPT_BY)
            return line.with_changes(semicolon=new.semicolon)
        live = operator and (is_live_name(old.target, at) or is_live_entry(old.target, at))
        if live or (operator and is_kept_name(old.target, at)):
            held, value = code_of(target), code_of(new.value)
            code = f"port.put({held}, {held} {operator} ({value}))"
            made = cst.parse_expression(wording(at, code))
            at.note(self, old, made, reason=_OWN if live else _KEPT_BY)
            return cst.Expr(made, semicolon=new.semicolon)
        if not isinstance(target, cst.Attribute) or target.attr.value != "data":
            return None
        holder = code_of(target.value)
        if holder == "self" or SETTINGS.search(holder):
            return None
        value = code_of(new.value)
        if operator:
            value = f"{holder} {operator} ({value})"
        made = cst.parse_expression(wording(at, f"port.set_data({holder}, {value})"))
        at.note(self, old, made)
        return cst.Expr(made, semicolon=new.semicolon)


class KeptDataRule(PortRule):
    """``backup[name] = param.data`` keeps the values where ``param.data = other`` comes later."""

    name = "kept data"
    reason = "`param.data = ...` gives torch's Parameter other memory, MindSpore's other values"
    visits = (cst.Attribute,)

    def act(self, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
        """Copy the values that are kept."""
        if old.attr.value != "data" or code_of(old.value) not in at.once(_given_data):
            return None
        if not _is_kept(old, at) or SETTINGS.search(code_of(old.value)):
            return None
        made = cst.Call(cst.Attribute(new, cst.Name("copy")))
        at.note(self, old, made, "changed", self.reason, _COPY)
        return made


_COPY = "a copy: what changes the Parameter in place later is not seen in it"


def _given_data(at: At) -> set[str]:
    """Return the names whose ``data`` is assigned somewhere in the file."""
    targets = (one.target for one in at.names.by_type[cst.AssignTarget])
    held = (one for one in targets if isinstance(one, cst.Attribute) and one.attr.value == "data")
    return {code_of(one.value) for one in held}


def _is_kept(node: cst.Attribute, at: At) -> bool:
    """Return whether a value gets a name or a place of its own, and is not assigned as data."""
    parent = at.names.parents.get(node)
    if isinstance(parent, cst.Assign):
        targets = [one.target for one in parent.targets]
        return not any(isinstance(t, cst.Attribute) and t.attr.value == "data" for t in targets)
    if isinstance(parent, cst.Arg):
        call = at.names.parents.get(parent)
        func = getattr(call, "func", None)
        return isinstance(func, cst.Attribute) and func.attr.value in ("append", "insert")
    return isinstance(parent, (cst.DictComp, cst.ListComp, cst.DictElement, cst.Element))


def changed_line(target: Any, change: cst.AugAssign, at: At) -> cst.Assign:
    """Return ``x = port.changed("+=", x, y)``, which changes what else holds a tensor, too."""
    held, by = code_of(target), code_of(change.value)
    made = wording(at, f'port.changed("{operator_of(change)}=", {held}, {by})')
    return cst.Assign([cst.AssignTarget(target)], cst.parse_expression(made))


def operator_of(node: cst.AugAssign) -> str:
    """Return the operator of ``x += y``: ``+``."""
    return cst.Module([]).code_for_node(node.operator).strip().rstrip("=")
