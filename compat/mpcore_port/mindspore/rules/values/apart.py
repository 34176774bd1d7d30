"""Numbers and tensors that stand apart between brackets: ``x[1, :, places]``.

torch takes the axis of a number away first. MindSpore has numpy's way, in which the axes of what
stands apart come first. The runtime of ports has torch's; it must be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, need

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ApartRule", "stand_apart"]


class ApartRule(PortRule):
    """A port whose tensors may be asked so imports the runtime, or says what is different."""

    name = "places apart"
    reason = "a number beside a tensor, apart from it: MindSpore puts the tensor's axes first"
    visits = (cst.Subscript,)

    def act(self, old: cst.Subscript, new: cst.Subscript, at: At) -> Any:
        """Look at one subscript."""
        if not any(name.startswith("torch") for name, _ in at.names.imports):
            return None
        if not stand_apart(old, at):
            return None
        if at.options.plain:
            at.unproven(self, old, self.reason)
            return None
        need(at, "port")
        if at.options.jit:
            at.unproven(self, old, _COMPILED, new)
        else:
            at.note(self, old, new, reason=_TAKEN)
        return new


def stand_apart(node: cst.Subscript, at: At) -> bool:
    """Return whether a tensor may be asked for a number and a tensor with a slice between."""
    parts = [_place(element.slice) for element in node.slice]
    found = [number for number, part in enumerate(parts) if part is not None]
    if len(found) < 2 or found[-1] - found[0] == len(found) - 1:
        return False
    if all(_is_number(parts[number], at) for number in found):
        return False
    return at.values.kind(node.value) != "neutral"


_COMPILED = (
    "a number beside a tensor, apart from it: a compiled function puts the tensor's axes first"
)
_TAKEN = "the runtime's tensors take a number's axis away first, as torch's"


def _place(part: Any) -> Any:
    """Return what is a place on an axis; None for slices, ``None`` and ``...``."""
    value = part.value if isinstance(part, cst.Index) else None
    is_none = isinstance(value, cst.Name) and value.value == "None"
    return None if is_none or isinstance(value, cst.Ellipsis) else value


def _is_number(node: Any, at: At) -> bool:
    """Return whether this is a number as it stands, or counts the turns of a loop."""
    if isinstance(node, cst.UnaryOperation):
        return _is_number(node.expression, at)
    if isinstance(node, cst.BinaryOperation):
        return _is_number(node.left, at) and _is_number(node.right, at)
    if not isinstance(node, cst.Name):
        return isinstance(node, cst.Integer)
    held = at.names.held(node)
    return bool(held) and all(_counts(one.node) for one in held)


def _counts(loop: Any) -> bool:
    turns = loop.iter if isinstance(loop, (cst.For, cst.CompFor)) else None
    called = turns.func if isinstance(turns, cst.Call) else None
    return isinstance(called, cst.Name) and called.value == "range"
