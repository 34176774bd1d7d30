"""``spectrum.real``: parts of complex tensors are methods in MindSpore."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import SETTINGS, PortRule, is_plain_object, wording
from mpcore_port.mindspore.rules.values.indexes import is_array
from mpcore_port.names import code_of
from mpcore_port.values import UNKNOWN

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ComplexPartRule"]

_SPEAKS = re.compile(r"\b(fft|stft|polar|complex|view_as_complex|c(float|double))\w*\b")
_PARTS = re.compile(r"\.\s*(real|imag)\b")
_ASKED = "asked of whatever it is when it runs: nothing in this file says that it is a tensor"
_WRITTEN = "what is written into a part of a complex tensor does not reach the tensor in MindSpore"
_MAY_BE = (UNKNOWN, "foreign", "torch", "tensor")


class ComplexPartRule(PortRule):
    """``x.real`` and ``x.imag`` become functions that ask whether ``x`` is a tensor."""

    name = "complex part"
    reason = "parts of a complex tensor are methods in MindSpore"
    visits = (cst.Attribute,)

    def idle(self, at: At) -> bool:
        """Whether no part is read, or the script is a port."""
        return super().idle(at) or not _PARTS.search(at.code)

    def act(self, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
        """Rewrite one part that is read."""
        if old.attr.value not in ("real", "imag") or at.names.qualified(old) is not None:
            return None
        parent = at.names.parents.get(old)
        is_called = isinstance(parent, cst.Call) and parent.func is old
        if is_called:
            return None
        speaks = at.once(_speaks)
        if at.names.is_assigned(old):
            if isinstance(parent, cst.AugAssign) and _may_be_tensor(old, at):
                at.unproven(self, old, _WRITTEN)
            return None
        if not speaks and not _may_be_tensor(old, at):
            return None
        made = cst.parse_expression(
            wording(at, f"port.{old.attr.value}_part({code_of(new.value)})")
        )
        if _is_written(old, at):
            at.unproven(self, old, _WRITTEN, made)
        elif speaks or at.values.kind(old.value) == "tensor":
            at.note(self, old, made)
        else:
            at.unproven(self, old, _ASKED, made)
        return made


def _speaks(at: At) -> bool:
    return _SPEAKS.search(at.code) is not None


def _may_be_tensor(node: cst.Attribute, at: At) -> bool:
    """Return whether a part may be a tensor's: of no number, array, setting or own attribute."""
    holder = node.value
    if at.values.kind(holder) not in _MAY_BE or SETTINGS.search(code_of(holder)):
        return False
    given = (one for one in at.names.held(node) if not isinstance(one.node, cst.AugAssign))
    if any(given) or is_plain_object(at, holder) or is_array(holder, at):
        return False
    return code_of(holder) != "self"


def _is_written(node: cst.Attribute, at: At) -> bool:
    """Return whether something is written into a part: ``x.real[0] = 1``, ``x.real.zero_()``."""
    above = at.names.parents.get(node)
    if isinstance(above, cst.Subscript) and above.value is node:
        return at.names.is_assigned(above)
    if not isinstance(above, cst.Attribute):
        return False
    name, call = above.attr.value, at.names.parents.get(above)
    called = isinstance(call, cst.Call) and call.func is above
    return called and name.endswith("_") and not name.endswith("__")
