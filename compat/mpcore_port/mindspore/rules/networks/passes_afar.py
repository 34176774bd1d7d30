"""Methods of a class's base in another file that are called with a loss, by their name to go back.

Nothing here says how they differentiate it: MindSpore's tensors have no graph to go back through.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of
from mpcore_port.packages import of_another_file

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["PassAfarRule"]

_BACK = re.compile(r"(^|_)back_?(ward|prop|propagate)(_|$)", re.I)
_UNSEEN = (
    "what it does with the loss is in another file, which is not ported along: as it stands this "
    "may train nothing; port the folder"
)


class PassAfarRule(PortRule):
    """``self._backward(loss)`` in a class whose base is of a file that nobody ported."""

    name = "pass afar"
    reason = _UNSEEN
    visits = (cst.Call,)

    def idle(self, at: At) -> bool:
        """Whether nothing is called so, or the script is a port."""
        return super().idle(at) or "back" not in at.code.lower()

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:  # a rule's signature
        """Name one call."""
        func = old.func
        if not isinstance(func, cst.Attribute) or not old.args:
            return None
        name = func.attr.value
        if code_of(func.value) not in ("self", "super()") or not _BACK.search(name):
            return None
        if name in at.names.functions or name in at.project.defined:
            return None
        owner = at.names.enclosing(old, cst.ClassDef)
        if isinstance(owner, cst.ClassDef) and any(map(of_another_file, at.names.bases(owner))):
            at.unproven(self, old, _UNSEEN)
        return None
