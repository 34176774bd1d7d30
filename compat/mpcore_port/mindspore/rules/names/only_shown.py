"""What torch says of itself: in a log it may be something else, and around switches it may go."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below, calls_in
from mpcore_port.mindspore.rules.place import PortRule, by_name
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = [
    "GuardRule",
    "are_switches",
    "is_only_shown",
    "is_switch",
    "kept_switch",
    "sets_switches",
]

_SWITCHES = ("torch.backends.", "torch._dynamo.config.", "torch._inductor.config.")
_TEXTS = (
    *(cst.Arg, cst.BooleanOperation, cst.ConcatenatedString, cst.Dict, cst.DictElement),
    *(cst.Element, cst.FormattedString, cst.IfExp, cst.List, cst.Tuple),
)
"""What hands a value on into a text, or into what is printed."""
_MAKES_TEXT = ("format", "join", "repr", "str")
_LOGGER = re.compile(r"(^|[._])(log(ger|ging)?|writer|console|warnings|tqdm|stdout|stderr)\b", re.I)
_SAYS = re.compile(r"^(critical|debug|error|info|log|print|warn|warning|write)$")
_PRINTS = re.compile(r"^_?(print|pprint|log)(_\w+)?$")


def is_switch(name: str | None) -> bool:
    """Return whether a name of torch is a setting of its kernels or of its compiler."""
    return name is not None and name.startswith(_SWITCHES)


_KEPT = re.compile(r"torch\.backends\.cudnn\.(allow_tf32|benchmark|deterministic|enabled)$")


def kept_switch(name: str | None, at: At) -> str:
    """Return what the runtime keeps a switch of cuDNN by, if the file asks for it; else "".

    What is set among several names goes, so that such a one cannot be asked for.
    """
    return at.once(_kept).get(name or "", "")


def _kept(at: At) -> dict[str, str]:
    found, lost = set(), set()
    for node in (*at.names.by_type[cst.Attribute], *at.names.by_type[cst.Name]):
        name = at.names.qualified(node) or ""
        if not _KEPT.match(name) or not at.names.is_reference(node):
            continue
        parent: Any = at.names.parents.get(node)
        target = at.names.enclosing(node, cst.AssignTarget)
        if target is not None:
            line: Any = at.names.parents.get(target)
            if parent is not target or len(line.targets) > 1:
                lost.add(name)
        elif not is_only_shown(node, at):
            found.add(name)
    return {name: f"port.switches.{name.rpartition('.')[2]}" for name in found - lost}


def is_only_shown(node: cst.CSTNode, at: At) -> bool:
    """Return whether a value goes into a message and nowhere else, by a name of its own or not."""
    child = node
    for outer in at.names.ancestors(node):
        if isinstance(outer, cst.Call):
            if _says(outer, at):
                return True
            if isinstance(at.names.parents.get(outer), cst.Raise):
                return True
            if outer.func is child or code_of(outer.func).rpartition(".")[2] not in _MAKES_TEXT:
                return False
        elif isinstance(outer, cst.FormattedStringExpression):
            if outer.format_spec is not None:  # a number is meant
                return False
        elif isinstance(outer, cst.BinaryOperation):
            plus = isinstance(outer.operator, cst.Add) and child is not node
            if not plus and not isinstance(outer.operator, cst.Modulo):
                return False
        elif isinstance(outer, cst.Assert):
            return outer.msg is child
        elif isinstance(outer, cst.Assign):
            if sets_switches(outer, at):
                return True
            alone = child is node or isinstance(child, (cst.List, cst.Tuple))
            return outer.value is child and alone and _is_name_shown(outer, at)
        elif not isinstance(outer, _TEXTS) or (
            isinstance(outer, cst.IfExp) and outer.test is child
        ):
            return False
        child = outer
    return False


def sets_switches(small: cst.CSTNode | None, at: At) -> bool:
    """Return whether a statement sets switches and nothing else."""
    if not isinstance(small, cst.Assign):
        return False
    return all(are_switches(one.target, at) for one in small.targets)


def are_switches(target: cst.BaseExpression, at: At) -> bool:
    """Return whether a target is a switch of torch's, or a tuple of nothing else."""
    if isinstance(target, (cst.Tuple, cst.List)):
        return all(are_switches(one.value, at) for one in target.elements)
    return is_switch(at.names.qualified(target))


def _is_name_shown(line: cst.Assign, at: At) -> bool:
    """Return whether a plain name gets the value, and all that reads it shows it."""
    target = line.targets[0].target
    if len(line.targets) != 1 or not isinstance(target, cst.Name):
        return False
    scope = at.names.scope(target)
    if scope is at.names.top or len(scope.find(target.value)) != 1:
        return False  # another file may read it, or it holds something else as well
    reads = [
        one
        for one in at.names.by_type[cst.Name]
        if one.value == target.value and one is not target and at.names.is_reference(one)
    ]
    return all(at.names.scope(one) is scope and is_only_shown(one, at) for one in reads)


def _says(call: cst.Call, at: At) -> bool:
    """Return whether a call on a line of its own prints or logs."""
    if not isinstance(at.names.parents.get(call), cst.Expr):
        return False
    if isinstance(call.func, cst.Name):
        return bool(_PRINTS.match(call.func.value))
    if not isinstance(call.func, cst.Attribute):
        return False
    holder = code_of(call.func.value)
    word = call.func.attr.value
    return bool(_SAYS.match(word)) and (bool(_LOGGER.search(holder)) or word.startswith("print"))


class GuardRule(PortRule):
    """``if torch.cuda.get_device_capability()[0] >= 8:`` around nothing but switches that go."""

    name = "guard"
    reason = "it guards switches of torch alone, and those go"
    visits = (cst.If,)

    def act(self, old: cst.If, new: cst.If, at: At) -> Any:
        """Answer the question, which nothing hangs on any more."""
        if old.orelse is not None or not _asks_torch(old.test, at):
            return None
        lines = [_kind(line, at) for line in old.body.body]
        if "" in lines or "switch" not in lines:
            return None
        shown = "what the script prints" if "print" in lines else "none on numbers"
        made = cst.Name("False")
        at.note(self, old.test, made, "changed", "", shown)
        return new.with_changes(test=made)


_ASKS = ("getattr", "hasattr", "int", "float", "str", "tuple", "parse", "LooseVersion", "split")


def _asks_torch(test: cst.BaseExpression, at: At) -> bool:
    """Return whether a test does nothing but ask torch what it is, and a port cannot say that."""
    for call in calls_in(test):
        name = at.names.called(call) or ""
        if not name.startswith("torch.") and code_of(call.func).rpartition(".")[2] not in _ASKS:
            return False
    named = (at.names.qualified(node) or "" for node in below(test) if at.names.is_reference(node))
    rows = [by_name(name) for name in named if name.startswith("torch.")]
    return any(row is None or row.refuse_all for row in rows)


def _kind(line: cst.CSTNode, at: At) -> str:
    """Return "switch" for a line that goes, "print" for one that says something, else ""."""
    if isinstance(line, cst.BaseSmallStatement):
        return _kind_of(line, at)
    if not isinstance(line, cst.SimpleStatementLine):
        return ""
    kinds = {_kind_of(small, at) for small in line.body}
    return kinds.pop() if len(kinds) == 1 else ""


def _kind_of(small: cst.BaseSmallStatement, at: At) -> str:
    if isinstance(small, cst.Assign):
        return "switch" if sets_switches(small, at) and not calls_in(small) else ""
    if not isinstance(small, cst.Expr) or not isinstance(small.value, cst.Call):
        return ""
    row = by_name(at.names.called(small.value) or "")
    if row is not None and row.remove:
        return "switch"
    return "print" if _says(small.value, at) and len(calls_in(small)) == 1 else ""
