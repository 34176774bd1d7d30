"""What a script writes into ``param_groups``: converted by the rule of rates, or refused here.

MindSpore's optimizers keep their rate in a Parameter: a dict that is written to changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_port.rule import At

__all__ = ["GroupRule"]

_CONVERTED = "learning rate"
_WRITES = {"update", "setdefault", "pop", "popitem", "clear", "__setitem__", "__delitem__"}
_LIST = {"append", "extend", "insert", "remove", "reverse", "sort", *_WRITES}
_READS = {"len", "print", "enumerate", "zip", "list", "tuple", "range", "sum", "max", "min"}
_READS |= {"float", "str", "format", "iter", "next", "sorted", "reversed", "round", "map"}


class GroupRule(PortRule):
    """A line that writes into ``param_groups`` and was not converted raises."""

    name = "parameter groups"
    reason = (
        "MindSpore's optimizer keeps what is set here in Parameters of its own; set the rate "
        "alone, as group['lr'] = value"
    )
    visits = (cst.SimpleStatementLine, cst.For)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Refuse one line, unless the rule of rates has converted all that it writes."""
        if isinstance(old, cst.For):
            written = [held for held in _held([old.target]) if isinstance(held, cst.Subscript)]
            if not any(_is_group(held.value, at) for held in written):
                return None
            return new.with_changes(iter=cst.Call(at.refuse(self, old.target, self.reason)))
        found = list(_written(old, at))
        if not found:
            return None
        line = at.line(old)
        converted = [e for e in at.edits if e.line == line and e.rule == _CONVERTED and e.new]
        if converted and all(place == "lr" for place in found):
            return None
        if any(edit.line == line and edit.kind == "refused" for edit in at.edits):
            return None
        call = at.refuse(self, old.body[0], self.reason)
        return new.with_changes(body=[cst.Expr(cst.Call(call))])


def _written(line: cst.SimpleStatementLine, at: At) -> Iterator[str]:
    """Yield what a line writes into groups: keys where they are literal, else "?"."""
    for small in line.body:
        yield from _targets(small, at)
        for node in _below(small):
            if isinstance(node, cst.Call):
                yield from _called(node, at)


def _targets(small: cst.BaseSmallStatement, at: At) -> Iterator[str]:
    targets: list[Any] = []
    if isinstance(small, cst.Assign):
        targets = [target.target for target in small.targets]
    elif isinstance(small, (cst.AugAssign, cst.AnnAssign)):
        targets = [small.target]
        if isinstance(small, cst.AugAssign) and _is_group(small.target, at):
            yield "?"
    elif isinstance(small, cst.Del):
        targets = [small.target]
    for held in _held(targets):
        if isinstance(held, cst.Subscript) and (
            _is_group(held.value, at) or _is_groups(held.value)
        ):
            yield _key(held)
        elif isinstance(held, cst.Attribute) and held.attr.value == "param_groups":
            yield "?"


def _held(targets: list[Any]) -> Iterator[Any]:
    for target in targets:
        if isinstance(target, (cst.Tuple, cst.List)):
            yield from _held([element.value for element in target.elements])
        else:
            yield target


def _called(call: cst.Call, at: At) -> Iterator[str]:
    func = call.func
    if isinstance(func, cst.Attribute):
        name = func.attr.value
        if (name in _WRITES and _is_group(func.value, at)) or (
            name in _LIST and _is_groups(func.value)
        ):
            yield "?"
    last = code_of(func).rpartition(".")[2]
    if last not in _READS:
        for arg in call.args:
            if _is_group(arg.value, at) or _is_groups(arg.value):
                yield "?"


def _key(node: cst.Subscript) -> str:
    text = code_of(node.slice[0]).strip("'\"") if len(node.slice) == 1 else "?"
    return text if text == "lr" else "?"


def _is_groups(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == "param_groups"


def _is_group(node: cst.CSTNode, at: At, depth: int = 4) -> bool:
    """Return whether ``node`` is one of an optimizer's groups, or a list of them under a name."""
    if isinstance(node, cst.Subscript):
        return _is_groups(node.value) or (depth > 0 and _is_group(node.value, at, depth - 1))
    if not isinstance(node, cst.Name) or not depth:
        return False
    for binding in at.names.scope(node).find(node.value):
        source: Any = binding.node
        if isinstance(source, (cst.For, cst.CompFor)):
            if any(map(_is_groups, _below(source.iter))):
                return True
        elif binding.kind == "value" and binding.value is not None:
            found = _is_groups(binding.value) or _is_group(binding.value, at, depth - 1)
            if found:
                return True
    return False


def _below(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _below(child)
