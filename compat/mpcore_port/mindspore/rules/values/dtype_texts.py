"""``str(x.dtype)``: torch's types are called ``torch.float32``, MindSpore's ``Float32``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["DtypeTextRule"]


class DtypeTextRule(PortRule):
    """``str(x.dtype)`` and ``f"{x.dtype}"`` are torch's words, which scripts ask and cut."""

    name = "text of a dtype"
    reason = "torch's types are called torch.float32, MindSpore's Float32"
    visits = (cst.Call, cst.FormattedStringExpression)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Write torch's word of one type."""
        if isinstance(old, cst.FormattedStringExpression):
            if not _is_dtype(old.expression) or old.conversion not in (None, "s"):
                return None
            made = _named(new.expression, at)
            at.note(self, old.expression, made)
            return new.with_changes(expression=made, conversion=None)
        func = old.func
        if not isinstance(func, cst.Name) or func.value != "str" or at.names.held(func):
            return None
        if len(old.args) != 1 or old.args[0].keyword is not None or old.args[0].star:
            return None
        if not _is_dtype(old.args[0].value):
            return None
        made = _named(new.args[0].value, at)
        at.note(self, old, made)
        return made


def _is_dtype(node: Any) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == "dtype"


def _named(node: Any, at: At) -> Any:
    return cst.parse_expression(wording(at, f"port.dtype_name({code_of(node)})"))
