"""Annotations that name what a port refuses: they say something to readers, and nothing when run.

``def train(mix: Optional[Mixup] = None)`` asks ``typing`` about Mixup when the function is defined,
and what stands for a refused import raises when something is asked of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.names.api import is_foreign
from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["AnnotationRule"]

_ANY = "object"


class AnnotationRule(PortRule):
    """A name of a refused import in an annotation is ``object``."""

    name = "annotation"
    reason = "an annotation only"
    visits = (cst.Name, cst.Attribute, cst.Subscript)

    def act(self, old: cst.BaseExpression, new: cst.BaseExpression, at: At) -> Any:
        """Replace one name, at the end of its chain; with its brackets, if it has some."""
        if at.names.enclosing(old, cst.Annotation) is None:
            return None
        if isinstance(new, cst.Subscript) and isinstance(old, cst.Subscript):
            made = code_of(new.value) == _ANY != code_of(old.value)
            return new.value if made else None
        if not at.names.is_reference(old) or not is_foreign(old, at):
            return None
        made_name = cst.Name(_ANY)
        at.note(self, old, made_name)
        return made_name
