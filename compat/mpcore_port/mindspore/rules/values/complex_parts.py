"""``spectrum.real``: parts of complex tensors are methods in MindSpore."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ComplexPartRule"]

_SPEAKS = re.compile(r"\b(fft|stft|polar|complex|view_as_complex|c(float|double))\w*\b")


class ComplexPartRule(PortRule):
    """``x.real`` and ``x.imag`` become functions that ask whether ``x`` is a tensor."""

    name = "complex part"
    reason = "parts of a complex tensor are methods in MindSpore"
    visits = (cst.Attribute,)

    def idle(self, at: At) -> bool:
        """Whether nothing is complex, or the script is a port."""
        return super().idle(at) or not _SPEAKS.search(at.code)

    def act(self, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
        """Rewrite one part that is read."""
        if old.attr.value not in ("real", "imag") or at.names.qualified(old) is not None:
            return None
        parent = at.names.parents.get(old)
        is_called = isinstance(parent, cst.Call) and parent.func is old
        if is_called or at.names.is_assigned(old):
            return None
        made = cst.parse_expression(
            wording(at, f"port.{old.attr.value}_part({code_of(new.value)})")
        )
        at.note(self, old, made)
        return made
