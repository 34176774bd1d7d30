"""What a network runs, asked for or set without a call: ``net.forward = net.fused``.

A Cell runs ``construct``: a ``forward`` that is set would never run, and one that is asked for is
not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import (
    PortRule,
    has_unknown_base,
    is_module_class,
    is_plain_object,
    may_be_network,
    wording,
)
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["RunsRule"]

_ASKED = "a Cell runs construct, any other object keeps forward: asked when it runs"
_BY_WORD = {
    ("setattr", 3): "port.set_run({0}, {2})",
    ("getattr", 2): "port.run_of({0})",
    ("getattr", 3): "port.run_of({0}, {2})",
    ("hasattr", 2): "(port.run_of({0}, None) is not None)",
}
_IN_PARTS = "forward is set together with other names: a Cell runs construct"


class RunsRule(PortRule):
    """``net.forward`` that is no call, and ``forward = other`` in the body of a network's class."""

    name = "runs"
    reason = "a Cell runs construct"
    visits = (cst.Assign, cst.Attribute, cst.Call, cst.SimpleStatementLine)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Map one place by what it is of."""
        if isinstance(old, cst.Assign):
            return self._set(old, new, at)
        if isinstance(old, cst.Attribute):
            return self._asked(old, new, at)
        if isinstance(old, cst.Call):
            return self._by_word(old, new, at)
        return self._in_class(old, new, at)

    def _by_word(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Map ``setattr(net, "forward", other)``, ``getattr`` and ``hasattr``."""
        function = old.func.value if isinstance(old.func, cst.Name) else ""
        form = _BY_WORD.get((function, len(old.args)))
        if form is None or any(arg.keyword or arg.star for arg in old.args):
            return None
        word = old.args[1].value
        if not isinstance(word, cst.SimpleString) or word.evaluated_value != "forward":
            return None
        if at.names.scope(old).find(function):
            return None  # a function of the script's own
        given = [code_of(arg.value) for arg in new.args]
        made = cst.parse_expression(wording(at, form.format(*given)))
        at.note(self, old, made, reason=_ASKED)
        return made

    def _set(self, old: cst.Assign, new: cst.Assign, at: At) -> Any:
        target = old.targets[0].target
        if len(old.targets) != 1 or not _is_forward(target, at):
            return None
        kind = _kind(target.value, at)  # type: ignore[attr-defined]
        if kind != "unknown":
            return None  # the attribute itself is ported, or nothing is
        held = code_of(new.targets[0].target.value)  # type: ignore[attr-defined]
        made = wording(at, f"port.set_run({held}, {code_of(new.value)})")
        at.note(self, old, made, reason=_ASKED)
        return cst.Expr(cst.parse_expression(made))

    def _asked(self, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
        if not _is_forward(old, at):
            return None
        parent = at.names.parents.get(old)
        if isinstance(parent, cst.Call) and parent.func is old:
            return None  # a method's call
        kind = _kind(old.value, at)
        if kind == "network":
            at.note(self, old, "construct")
            return new.with_changes(attr=cst.Name("construct"))
        if kind == "plain":
            return None
        if isinstance(parent, cst.AssignTarget) and _is_alone(parent, at):
            return None  # see _set
        if _is_target(parent, at):
            at.unproven(self, old, _IN_PARTS)
            return None
        made = cst.parse_expression(wording(at, f"port.run_of({code_of(new.value)})"))
        at.note(self, old, made, reason=_ASKED)
        return made

    def _in_class(self, old: cst.SimpleStatementLine, new: Any, at: At) -> Any:
        owner = at.names.parents.get(at.names.parents.get(old))  # type: ignore[arg-type]
        if not isinstance(owner, cst.ClassDef) or not is_module_class(owner, at):
            return None
        line = new.body[0]
        if len(new.body) != 1 or not isinstance(line, cst.Assign):
            return None
        names = [one.target.value for one in line.targets if isinstance(one.target, cst.Name)]
        is_read = isinstance(line.value, cst.Name) and line.value.value == "forward"
        if "forward" not in names and not is_read:
            return None
        targets = [
            one.with_changes(target=cst.Name("construct"))
            if isinstance(one.target, cst.Name) and one.target.value == "forward"
            else one
            for one in line.targets
        ]
        value = cst.Name("construct") if is_read else line.value
        made = line.with_changes(targets=targets, value=value)
        at.note(self, old.body[0], made)
        return new.with_changes(body=[made])


def _is_forward(node: Any, at: At) -> bool:
    """Return whether this is ``x.forward`` of something that is no module or name of a package."""
    if not isinstance(node, cst.Attribute) or node.attr.value != "forward":
        return False
    qualified = at.names.qualified(node)
    return qualified is None or not qualified.startswith("torch.")


def _kind(holder: cst.BaseExpression, at: At) -> str:
    """Return whether something surely is a network, surely none, or unknown: "" is no answer."""
    own = _class_of(holder, at)
    if own is not None:
        if is_module_class(own, at):
            return "network"
        return "unknown" if has_unknown_base(own, at) else "plain"
    if is_plain_object(at, holder) and not may_be_network(at, holder):
        return "plain" if at.names.imported(holder) is None else "unknown"
    return "unknown"


def _class_of(holder: cst.BaseExpression, at: At) -> cst.ClassDef | None:
    """Return the class of the file that is meant, or that something is of."""
    if isinstance(holder, cst.Name):
        if holder.value == "self":
            owner: cst.ClassDef | None = at.names.enclosing(holder, cst.ClassDef)
            return owner
        named = at.names.classes.get(holder.value, ())
        if len(named) == 1:
            return named[0]
    found: cst.ClassDef | None = at.names.class_named(holder)
    return found


def _is_alone(target: cst.AssignTarget, at: At) -> bool:
    line = at.names.parents.get(target)
    return isinstance(line, cst.Assign) and len(line.targets) == 1


def _is_target(parent: Any, at: At) -> bool:
    """Return whether something is set or deleted, perhaps in ``a.forward, b.forward = ...``."""
    if isinstance(parent, cst.Element):
        parent = at.names.parents.get(at.names.parents[parent])
    return isinstance(parent, (cst.AssignTarget, cst.AnnAssign, cst.Del))
