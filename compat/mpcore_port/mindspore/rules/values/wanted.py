"""``x.requires_grad`` that is read: Parameters have it, other tensors where a loss is made."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, is_plain_object, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["WANTED_SAYS", "WantedRule", "goes_through_parameters", "is_of_parameters"]

_PARAMETER = re.compile(r"param|(^|[._])(weight|bias|w|p|v)$|\.grad$", re.I)
_ALL_OF_IT = re.compile(r"\.(named_)?parameters\(\)$")
_LOOPED = re.compile("param|module|weights")
WANTED_SAYS = (
    "it answers as torch's in what port.loss runs and in no_grad; what is made outside of both, "
    "and was not said to want a gradient, answers False"
)


class WantedRule(PortRule):
    """A tensor that is asked whether it wants a gradient."""

    name = "wanted"
    reason = "a Parameter says it, and what was told so"
    visits = (cst.Attribute,)

    def act(self, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
        """Ask by a function where the tensor may be no Parameter."""
        if old.attr.value != "requires_grad" or at.names.qualified(old) is not None:
            return None
        if at.names.is_assigned(old):
            return None
        if is_plain_object(at, old.value) or is_of_parameters(old.value, at):
            return None
        made = cst.parse_expression(wording(at, f"port.wants_grad({code_of(new.value)})"))
        at.unproven(self, old, WANTED_SAYS, made)
        return made


def is_of_parameters(node: Any, at: At) -> bool:
    """Return whether this is a Parameter by its name, or goes through what a network's are."""
    held = code_of(node)
    if held == "self" or _PARAMETER.search(held):
        return True
    loops = [one.node.iter for one in _bound(node, at) if isinstance(one.node, _LOOPS)]
    return bool(loops) and all(_LOOPED.search(code_of(one)) for one in loops)


_LOOPS = (cst.For, cst.CompFor)


def goes_through_parameters(node: Any, at: At) -> bool:
    """Return whether a name is nothing but what loops over a network's parameters give it."""
    found = _bound(node, at)
    looped = (isinstance(b.node, _LOOPS) and _ALL_OF_IT.search(code_of(b.node.iter)) for b in found)
    return bool(found) and all(looped)


def _bound(node: Any, at: At) -> list[Any]:
    return at.names.scope(node).find(node.value) if isinstance(node, cst.Name) else []
