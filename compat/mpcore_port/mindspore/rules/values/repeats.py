"""Lists that are repeated as often as a number of a tensor says: MindSpore multiplies instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of
from mpcore_port.values import UNKNOWN

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["RepeatRule"]

_REPEATED = (cst.List, cst.ListComp, cst.Tuple, cst.BaseString)


class RepeatRule(PortRule):
    """``[0] * n`` for ``n`` of a tensor takes a number of Python's."""

    name = "repeat"
    reason = "MindSpore's tensors do not count how often a list is repeated"
    visits = (cst.BinaryOperation,)

    def act(self, old: cst.BinaryOperation, new: cst.BinaryOperation, at: At) -> Any:
        """Write ``int(...)`` around the number of one repetition."""
        if not isinstance(old.operator, cst.Multiply):
            return None
        sides = {"left": old.left, "right": old.right}
        counts = [side for side, node in sides.items() if not isinstance(node, _REPEATED)]
        if len(counts) != 1 or not _may_be_tensor(sides[counts[0]], at):
            return None
        count: Any = getattr(new, counts[0])
        made = cst.Call(cst.Name("int"), [cst.Arg(count.with_changes(lpar=(), rpar=()))])
        at.note(self, sides[counts[0]], made)
        return new.with_changes(**{counts[0]: made})


def _may_be_tensor(node: Any, at: At) -> bool:
    """Return whether a number surely is a tensor's, or one of what a loop goes through."""
    kind = at.values.kind(node)
    if kind == "tensor":
        return not (isinstance(node, cst.Call) and code_of(node.func) in ("int", "len"))
    if kind != UNKNOWN or not isinstance(node, cst.Name):
        return False
    found = at.names.scope(node).find(node.value)
    return bool(found) and all(isinstance(b.node, (cst.For, cst.CompFor)) for b in found)
