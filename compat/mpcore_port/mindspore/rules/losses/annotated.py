"""``loss: Tensor = criterion(y, t)``: an assignment whose annotation says nothing when it runs.

Statements of a training step move into functions, in which a name that is kept has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["AnnotatedRule"]


class AnnotatedRule(PortRule):
    """Annotated assignments of a script that trains become plain ones; fields of classes stay."""

    name = "annotated"
    reason = "statements of a step move into a function: its names have no annotations"
    visits = (cst.AnnAssign,)

    def act(self, old: cst.AnnAssign, new: cst.AnnAssign, at: At) -> Any:
        """Leave the annotation of one assignment out."""
        if new.value is None or at.names.scope(old).kind == "class" or not at.once(_trains):
            return None
        made = cst.Assign([cst.AssignTarget(new.target)], new.value, semicolon=new.semicolon)
        at.note(self, old, made)
        return made


def _trains(at: At) -> bool:
    return bool(at.names.callers("backward"))
