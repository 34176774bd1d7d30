"""``x[:, :, ::2, ::2]``: a step on a middle axis has no gradient on MindSpore's CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.losses.firsts import is_set
from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["StrideRule"]


class StrideRule(PortRule):
    """``x[:, ::2]`` of a tensor, where it is read, takes its rows one by one."""

    name = "stride"
    reason = "the gradient of a step on a middle axis has no CPU kernel that works in MindSpore"
    visits = (cst.Subscript,)

    def idle(self, at: At) -> bool:
        """Whether no place has a step, or the script is a port."""
        return super().idle(at) or "::" not in at.code

    def act(self, old: cst.Subscript, new: cst.Subscript, at: At) -> Any:
        """Rewrite one subscript that is read."""
        if at.options.plain or not _has_middle_step(old) or is_set(old, at):
            return None
        if _is_written(old, at):
            return None
        if at.values.kind(old.value) == "neutral":
            return None
        held = cst.Call(cst.parse_expression(wording(at, "port.strided")), [cst.Arg(new.value)])
        made = new.with_changes(value=held)
        at.note(self, old, made)
        return made


def _is_written(node: cst.Subscript, at: At) -> bool:
    """Return whether a method in place writes to it, as in ``boxes[:, 0::2].clamp_(0, 1)``."""
    held = at.names.parents.get(node)
    if not isinstance(held, cst.Attribute) or not held.attr.value.endswith("_"):
        return False
    call = at.names.parents.get(held)
    return isinstance(call, cst.Call) and call.func is held


def _has_middle_step(node: cst.Subscript) -> bool:
    """Return whether an axis that is perhaps neither the first nor the last has a step."""
    parts = [element.slice for element in node.slice]
    for place, part in enumerate(parts):
        if place == 0 or not isinstance(part, cst.Slice) or part.step is None:
            continue
        last = place == len(parts) - 1
        behind = any(_is_ellipsis(one) for one in parts[:place])
        if code_of(part.step) not in ("1", "None") and not (last and behind):
            return True
    return False


def _is_ellipsis(part: Any) -> bool:
    return isinstance(part, cst.Index) and code_of(part.value) in ("...", "Ellipsis")
