"""What MindSpore takes from lists and tuples alone: sizes, numbers and Cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["of_a_queue", "of_any_row", "of_no_size", "of_single_ones"]

_OF_NUMBERS = ("torch.tensor", "torch.as_tensor")
_QUEUE = "collections.deque"
_MEANS = ("avg", "val")  # what meters of scripts call what they were given


def of_a_queue(name: str, old: cst.Call, new: cst.Call, at: At) -> cst.Call:
    """Return ``torch.tensor(list(queue))`` for ``torch.tensor(queue)``; else what was given."""
    if name not in _OF_NUMBERS or not old.args or old.args[0].keyword or old.args[0].star:
        return new
    if _QUEUE not in at.names.call_names(old.args[0].value):
        return new
    made = cst.parse_expression(f"list({code_of(new.args[0].value)})")
    return new.with_changes(args=[new.args[0].with_changes(value=made), *new.args[1:]])


def of_single_ones(name: str, old: cst.Call, new: cst.Call, at: At) -> cst.Call:
    """Return ``torch.tensor(port.singles([a, b]))`` where ``a`` may be a tensor of one number.

    Torch takes it as that number, of any shape; MindSpore keeps its axes, or raises.
    """
    if name not in _OF_NUMBERS or not old.args or old.args[0].keyword or old.args[0].star:
        return new
    if not _may_hold_tensors(old.args[0].value, at):
        return new
    made = cst.parse_expression(wording(at, f"port.singles({code_of(new.args[0].value)})"))
    return new.with_changes(args=[new.args[0].with_changes(value=made), *new.args[1:]])


def _may_hold_tensors(node: Any, at: At) -> bool:
    """Return whether a list that is written there has parts that are made of what is no number."""
    if isinstance(node, (cst.List, cst.Tuple)):
        return any(
            _may_hold_tensors(one.value, at) or _may_be_tensor(one.value, at)
            for one in node.elements
        )
    return isinstance(node, cst.ListComp) and at.values.kind(node.elt) == "tensor"


def _may_be_tensor(node: Any, at: At) -> bool:
    """Return whether something is a tensor, one of several that a call gives, or a mean of such."""
    if at.values.kind(node) == "tensor":
        return True
    if isinstance(node, cst.Attribute):
        return node.attr.value in _MEANS and isinstance(node.value, cst.Name)
    if not isinstance(node, cst.Name):
        return False
    held = at.names.meanings(node)
    return any(b.kind == "element" and isinstance(b.value, cst.Call) for b in held)


def of_no_size(name: str, old: cst.Call, made: Any) -> Any:
    """Return ``ops.zeros(1).reshape(())`` for ``torch.zeros([])``; else what was given."""
    if name not in ("torch.zeros", "torch.ones") or not old.args or not isinstance(made, cst.Call):
        return made
    size = old.args[0].value
    if not isinstance(size, (cst.List, cst.Tuple)) or size.elements or not made.args:
        return made
    one = made.args[0].with_changes(value=cst.Integer("1"))
    return cst.parse_expression(
        f"{code_of(made.with_changes(args=[one, *made.args[1:]]))}.reshape(())"
    )


def of_any_row(name: str, old: cst.Call, made: Any, at: At) -> Any:
    """Return ``port.ModuleList(...)`` of what may be no list, or of a list with None in it."""
    if name != "torch.nn.ModuleList" or len(old.args) != 1 or not isinstance(made, cst.Call):
        return made
    given = old.args[0].value
    if _is_list(given, at) and not _may_hold_none(given, at):
        return made
    return made.with_changes(func=cst.parse_expression(wording(at, "port.ModuleList")))


def _is_list(node: Any, at: At, seen: frozenset[int] = frozenset()) -> bool:
    """Return whether something surely is a list: MindSpore's CellList takes no other row.

    Of ``a = a + [x]`` the other value of the name decides.
    """
    if id(node) in seen:
        return True
    if isinstance(node, cst.BinaryOperation):
        sides = (node.left, node.right) if isinstance(node.operator, cst.Add) else (node.left,)
        return all(_is_list(side, at, seen | {id(node)}) for side in sides)
    if isinstance(node, (cst.Name, cst.Attribute)):
        held = [one for one in at.names.origins(node) if one is not node]
        return bool(held) and all(_is_list(one, at, seen) for one in held)
    if isinstance(node, cst.Call):
        return code_of(node.func) in ("list", "sorted")
    return isinstance(node, (cst.List, cst.ListComp))


def _may_hold_none(node: Any, at: At, seen: frozenset[int] = frozenset()) -> bool:
    """Return whether a place of a list may be empty: ``[A() if one else None for one in x]``."""
    if id(node) in seen:
        return False
    now = seen | {id(node)}
    parts: list[Any] = []
    if isinstance(node, (cst.Name, cst.Attribute)):
        parts = [one for one in at.names.origins(node) if one is not node]
    if isinstance(node, cst.BinaryOperation):
        parts = [node.left, node.right]
    if isinstance(node, cst.Call):
        parts = [arg.value for arg in node.args]
    if isinstance(node, cst.ListComp):
        return _may_be_none(node.elt, at)
    if isinstance(node, cst.List):
        return any(_may_be_none(element.value, at) for element in node.elements)
    return any(_may_hold_none(one, at, now) for one in parts)


def _may_be_none(node: Any, at: At) -> bool:
    return any(code_of(value) == "None" for value in at.names.origins(node))
