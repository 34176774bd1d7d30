"""What a layer's class is called: ``m.__class__.__name__`` of a Dense is no "Linear"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ClassNameRule"]

_SPOKEN = re.compile(
    r"[\"'][\w .]*(Linear|ModuleList|ModuleDict|Sequential|ConvTranspose|Hardswish|Hardsigmoid)"
)
"""A text with a name that MindSpore's layers do not have."""


class ClassNameRule(PortRule):
    """``m.__class__.__name__`` gives torch's names where the script asks for one of them."""

    name = "class name"
    reason = "layers of MindSpore have classes of other names"
    visits = (cst.Attribute, cst.Call)

    def idle(self, at: At) -> bool:
        """Whether no text has such a name, or the script is a port."""
        return super().idle(at) or _SPOKEN.search(at.code) is None

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Map one name of a class that is asked for."""
        if at.options.plain or not isinstance(new, type(old)):
            return None
        if isinstance(old, cst.Call):
            asked = old.func if isinstance(old.func, cst.Attribute) and not old.args else None
            if asked is None or asked.attr.value != "_get_name":
                return None
            held = new.func.value
        elif old.attr.value == "__name__":
            held = _object_of(new.value)
        else:
            return None
        if held is None or code_of(held) in ("self", "super()"):
            return None
        made = cst.parse_expression(wording(at, f"port.class_name({code_of(held)})"))
        at.note(self, old, made)
        return made


def _object_of(kind: Any) -> Any:
    """Return ``m`` of ``m.__class__``, or of ``type(m)``."""
    if isinstance(kind, cst.Attribute) and kind.attr.value == "__class__":
        return kind.value
    if isinstance(kind, cst.Call) and code_of(kind.func) == "type" and len(kind.args) == 1:
        return kind.args[0].value
    return None
