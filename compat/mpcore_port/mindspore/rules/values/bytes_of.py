"""``torch.tensor(bytearray(b))``: torch reads the numbers of a buffer, MindSpore of a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["BytesRule"]

_MAKERS = frozenset({"torch.tensor", "torch.as_tensor", "torch.ByteTensor"})


class BytesRule(PortRule):
    """``torch.tensor(bytearray(b), dtype=torch.uint8)`` reads the list of its numbers."""

    name = "bytes"
    reason = "MindSpore makes no tensor of a bytearray; of the list of its numbers it does"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Write ``list`` around what is read."""
        if at.names.called(old) not in _MAKERS or not old.args or old.args[0].star:
            return None
        given = old.args[0].value
        if not isinstance(given, cst.Call) or not isinstance(given.func, cst.Name):
            return None
        if given.func.value != "bytearray" or at.names.held(given.func):
            return None
        numbers = cst.Call(cst.Name("list"), [cst.Arg(new.args[0].value)])
        made = new.with_changes(args=[new.args[0].with_changes(value=numbers), *new.args[1:]])
        at.note(self, old, made)
        return made
