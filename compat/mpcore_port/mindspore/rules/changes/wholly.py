"""What is given to a whole tensor: behind ``y[...] = x`` MindSpore has one memory for both.

torch copies. What is changed in ``y`` then would be changed in ``x``, and the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["WhollyRule"]


class WhollyRule(PortRule):
    """``y[...] = x`` gives y the values of x, as a copy."""

    name = "whole"
    reason = "MindSpore would have one memory for both: the values are copied, as in torch"
    visits = (cst.Assign,)

    def act(self, old: cst.Assign, new: cst.Assign, at: At) -> Any:
        """Copy what is assigned."""
        if not any(name.startswith("torch") for name, _ in at.names.imports):
            return None
        whole: list[Any] = [target.target for target in old.targets if _is_whole(target.target)]
        if not whole or isinstance(old.value, (cst.BaseNumber, cst.UnaryOperation)):
            return None
        if any(at.values.kind(one.value) == "neutral" for one in whole):
            return None  # an array of numpy
        made = cst.parse_expression(wording(at, f"port.copy_of({code_of(new.value)})"))
        at.note(self, old, made)
        return new.with_changes(value=made)


def _is_whole(node: Any) -> bool:
    """Return whether this is ``y[...]``."""
    if not isinstance(node, cst.Subscript) or len(node.slice) != 1:
        return False
    return isinstance(getattr(node.slice[0].slice, "value", None), cst.Ellipsis)
