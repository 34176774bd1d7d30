"""Parts of networks that others take the place of, by a name that is known when it runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, is_plain_object, wording
from mpcore_port.names import code_of, string_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ReplacedRule"]

_WALKED = re.compile(r"\b(named_children|named_modules|_modules|get_submodule)\b")
_ALL = 3  # setattr(module, name, part)


class ReplacedRule(PortRule):
    """``setattr(module, name, part)`` also changes what a Sequential runs."""

    name = "replaced"
    reason = "a SequentialCell of MindSpore runs the list that it was made with"
    visits = (cst.Assign, cst.Call)

    def idle(self, at: At) -> bool:
        """Whether no parts are looked for by their names, or the script is a port."""
        return super().idle(at) or not _WALKED.search(at.code)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Map ``setattr(module, name, part)`` and ``module._modules[name] = part``."""
        if isinstance(old, cst.Assign):
            return self._set(old, new, at)
        if code_of(old.func) != "setattr" or len(old.args) != _ALL:
            return None
        holder, name, _ = (arg.value for arg in old.args)
        if string_of(name) is not None or is_plain_object(at, holder):
            return None
        made = new.with_changes(func=cst.parse_expression(wording(at, "port.set_part")))
        at.note(self, old, made)
        return made

    def _set(self, old: cst.Assign, new: cst.Assign, at: At) -> Any:
        target: Any = new.targets[0].target
        if len(old.targets) != 1 or not isinstance(target, cst.Subscript) or len(target.slice) != 1:
            return None
        held, place = target.value, target.slice[0].slice
        if not isinstance(held, cst.Attribute) or not isinstance(place, cst.Index):
            return None
        if held.attr.value != "_modules" or code_of(held.value) == "self":
            return None
        given = f"{code_of(held.value)}, {code_of(place.value)}, {code_of(new.value)}"
        made = cst.Expr(cst.parse_expression(wording(at, f"port.set_part({given})")))
        at.note(self, old, made)
        return made
