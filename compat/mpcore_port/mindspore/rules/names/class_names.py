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
    r"[\"'][\w .]*(Linear|ModuleList|ModuleDict|Sequential|ConvTranspose|Hardswish|Hardsigmoid)",
    re.I,
)
"""A text with a name that MindSpore's layers do not have."""
_TOLD = re.compile(r"\b(str|repr)\(.*(__class__|type\()")
"""The whole of what Python says of a class, which has the file that it stands in."""

_WALKED = re.compile(r"\bfor [\w, ()]+ in [^\n]*\.(named_)?(modules|children)\(")
"""A loop over the layers of a network."""


class ClassNameRule(PortRule):
    """``m.__class__.__name__`` and ``str(type(m))`` give torch's names where a script asks."""

    name = "class name"
    reason = "layers of MindSpore have classes of other names"
    visits = (cst.Attribute, cst.Call)

    def idle(self, at: At) -> bool:
        """Whether no text has such a name, or the script is a port."""
        asked = _SPOKEN.search(at.code) or _TOLD.search(at.code) or _WALKED.search(at.code)
        return super().idle(at) or not asked

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Map one name of a class that is asked for."""
        if at.options.plain or not isinstance(new, type(old)):
            return None
        if isinstance(old, cst.Call) and code_of(old.func) in ("str", "repr"):
            return self._whole(old, new, at)
        if _SPOKEN.search(at.code) is None and not _is_walked(old, at):
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

    def _whole(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Map ``str(type(m))`` and ``str(m.__class__)`` of what may be a layer or a tensor."""
        args = [arg.value for arg in new.args if arg.keyword is None and not arg.star]
        held = _object_of(args[0]) if len(new.args) == len(args) == 1 else None
        before = _object_of(old.args[0].value) if held is not None else None
        if (
            held is None
            or before is None
            or code_of(before) == "self"
            or at.values.kind(before) == "neutral"
        ):
            return None
        made = cst.parse_expression(wording(at, f"port.class_text({code_of(held)})"))
        at.note(self, old, made)
        return made


def _is_walked(node: Any, at: At) -> bool:
    """Return whether it is asked of what a loop gets of a network: settings may name its class."""
    held = _object_of(node.value) if isinstance(node, cst.Attribute) else None
    name = held.value if isinstance(held, cst.Name) else ""
    loops = (found[0] for found in _WALKED.finditer(at.code))
    return bool(name) and any(re.search(rf"\b{name}\b.* in ", loop) for loop in loops)


def _object_of(kind: Any) -> Any:
    """Return ``m`` of ``m.__class__``, or of ``type(m)``."""
    if isinstance(kind, cst.Attribute) and kind.attr.value == "__class__":
        return kind.value
    if isinstance(kind, cst.Call) and code_of(kind.func) == "type" and len(kind.args) == 1:
        return kind.args[0].value
    return None
