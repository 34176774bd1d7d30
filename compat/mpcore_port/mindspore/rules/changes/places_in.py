"""Parts, entries and attributes that a changed tensor is written back to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.changes.fresh import is_made_tensor
from mpcore_port.mindspore.rules.changes.methods_in_place import NO_PARTS, VIEWS, is_chained
from mpcore_port.mindspore.rules.place import wording
from mpcore_port.names import code_of, dotted

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = [
    "is_attribute",
    "is_entry",
    "is_handed",
    "is_one_of_values",
    "is_part",
    "is_place",
    "is_viewed",
    "part_changed",
    "view_of",
]


def is_attribute(node: Any) -> bool:
    """Return whether an object holds this by a name: ``net.scale``, ``of(net).scale``, no view."""
    return isinstance(node, cst.Attribute) and node.attr.value not in NO_PARTS


def is_viewed(held: Any, at: At) -> bool:
    """Return whether a part of an attribute gets a name of its own somewhere."""
    text = code_of(held)
    for node in at.names.by_type[cst.Attribute]:
        parent = at.names.parents.get(node)
        if code_of(node) != text:
            continue
        if isinstance(parent, cst.Attribute) and parent.attr.value in VIEWS | {"view", "data"}:
            method = at.names.parents.get(parent)
            changes = isinstance(method, cst.Attribute) and method.attr.value.endswith("_")
            if not changes:
                return True
        if isinstance(parent, cst.Subscript) and parent.value is node:
            above = at.names.parents.get(parent)
            if isinstance(above, (cst.Assign, cst.Return)):
                return True
    return False


def view_of(node: Any, at: At) -> str:
    """Return the name that ``torch.diagonal(c)``, or a chain of methods in place on it, is of."""
    while isinstance(node, cst.Call) and is_chained(node):
        node = node.func.value  # type: ignore[attr-defined]
    if not isinstance(node, cst.Call):
        return ""
    called = at.names.called(node)
    last = (called or code_of(node.func)).rpartition(".")[2]
    if last not in VIEWS:
        return ""
    held = node.func.value if called is None and isinstance(node.func, cst.Attribute) else None
    if called is not None and called.startswith("torch.") and node.args:
        held = node.args[0].value
    return held.value if isinstance(held, cst.Name) else ""


def is_part(node: Any, at: At) -> bool:
    """Return whether ``x[:, i]`` is meant: a view in torch, and a tensor's part, no list's.

    What a mask or a list of places takes out is a copy in torch: it changes nothing there.
    """
    if not isinstance(node, cst.Subscript) or not dotted(node.value):
        return False
    indices: list[Any] = [element.slice for element in node.slice]
    ranges = [isinstance(index, cst.Slice) for index in indices]
    return (any(ranges) or is_made_tensor(node.value, at)) and all(
        is_range or is_place(index.value, at)
        for is_range, index in zip(ranges, indices, strict=True)
    )


def part_changed(part: cst.Subscript, value: Any, at: At) -> Any:
    """Return the call that gives ``x[:, 1:]`` a value and is the part: an argument, or one side."""
    places = ", ".join(_place(element.slice) for element in part.slice)
    if len(part.slice) > 1:
        places = f"({places})"
    made = f"port.part_changed({code_of(part.value)}, {places}, {code_of(value)})"
    return cst.parse_expression(wording(at, made))


def _place(index: Any) -> str:
    if not isinstance(index, cst.Slice):
        return code_of(index.value)
    ends = [code_of(one) if one is not None else "None" for one in (index.lower, index.upper)]
    step = [code_of(index.step)] if index.step is not None else []
    return f"slice({', '.join(ends + step)})"


def is_place(node: Any, at: At) -> bool:
    """Return whether an index surely is a whole number, or ``...``."""
    if isinstance(node, cst.UnaryOperation):
        node = node.expression
    if isinstance(node, (cst.Integer, cst.Ellipsis)):
        return True
    if not isinstance(node, cst.Name):
        return False
    found = at.names.scope(node).find(node.value)
    loops = [b.value for b in found if b.kind == "for" and isinstance(b.value, cst.Call)]
    return bool(found) and len(loops) == len(found) == sum(
        code_of(call.func) == "range" for call in loops
    )


def is_entry(node: Any, at: At) -> bool:
    """Return whether this is ``x["a"]``, or ``x[k]`` in a loop over the keys of ``x``."""
    if not isinstance(node, cst.Subscript) or not dotted(node.value) or len(node.slice) != 1:
        return False
    key = getattr(node.slice[0].slice, "value", None)
    if isinstance(key, cst.SimpleString):
        return True
    found = at.names.scope(node).find(key.value) if isinstance(key, cst.Name) else []
    over = [code_of(one.node.iter) for one in found if isinstance(one.node, cst.For)]
    keys = {code_of(node.value) + end for end in ("", ".keys()", ".items()")}
    return bool(over) and len(over) == len(found) and keys.issuperset(over)


_OF_VALUES = re.compile(r"^[\w.]+\.(values|items)\(\)$")


def is_one_of_values(node: Any, at: At) -> bool:
    """Return whether a name is given by loops over the values of dictionaries alone."""
    found = at.names.scope(node).find(node.value) if isinstance(node, cst.Name) else []
    loops = [one.node for one in found if isinstance(one.node, cst.For)]
    return (
        bool(loops)
        and len(loops) == len(found)
        and all(
            _OF_VALUES.match(code_of(loop.iter)) is not None
            and code_of(loop.target).rpartition(" ")[2].strip("()") == node.value
            for loop in loops
        )
    )


def is_handed(node: Any, at: At) -> bool:
    """Return whether this is what a function was called with, or a chain in place on it."""
    while is_chained(node):
        node = node.func.value
    found = at.names.scope(node).find(node.value) if isinstance(node, cst.Name) else []
    return bool(found) and all(isinstance(one.node, cst.Param) for one in found)
