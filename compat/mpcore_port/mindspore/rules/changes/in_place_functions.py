"""``torch.clamp_(x, 0, 1)``: the method in place of what it is handed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.torch_names import EXPORTS

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["InPlaceFunctionRule"]

_PLAIN = (cst.Name, cst.Attribute, cst.Subscript, cst.Call)


class InPlaceFunctionRule(PortRule):
    """A function of torch that works in place is written as the tensor's method."""

    name = "in-place function"
    reason = "the tensor's method does the same"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Rewrite one call; what comes of it is torch's still, and ported like the rest."""
        module, _, name = (at.names.called(old) or "").rpartition(".")
        if module not in ("torch", "torch.nn.functional") or not name.endswith("_"):
            return None
        if name not in EXPORTS["torch.Tensor"] or name.endswith("__") or not old.args:
            return None
        first, *others = new.args
        if first.keyword is not None or first.star or not isinstance(first.value, _PLAIN):
            return None
        made = new.with_changes(func=cst.Attribute(first.value, cst.Name(name)), args=others)
        at.note(self, old, made)
        return made
