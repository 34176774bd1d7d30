"""Tensors of a network that want a gradient, and are no Parameters: who asks for it is elsewhere.

An architecture's weights, say, that another file hands to an optimizer. MindSpore differentiates
by Parameters, and by tensors that ``port.loss`` is told of.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, trained_leaves, unmoved
from mpcore_port.names import code_of, dotted

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["LeafRule"]

_WANTS = re.compile(r"\brequires_grad\s*=\s*True|\.requires_grad_\((True)?\)")
_ASKED = (
    "it wants a gradient, and nothing in this file asks for one: in MindSpore it has none unless "
    "it is a Parameter, or among the inputs of port.loss"
)


class LeafRule(PortRule):
    """``self.alphas = Variable(x, requires_grad=True)`` is listed: no loss of the file has it."""

    name = "leaf"
    reason = _ASKED
    visits = (cst.Assign,)

    def idle(self, at: At) -> bool:
        """Whether nothing wants a gradient, or the script is a port."""
        return super().idle(at) or not _WANTS.search(at.code)

    def act(self, old: cst.Assign, new: cst.Assign, at: At) -> Any:
        """Look at one assignment; it stays."""
        text = dotted(old.targets[0].target)
        if not text.startswith("self.") or not _WANTS.search(code_of(old.value)):
            return None
        made = unmoved(old.value) or old.value
        leaves = at.once(trained_leaves)
        known = id(made) in leaves or id(old.value) in leaves
        if known or "Parameter" in code_of(old.value) or _is_asked_for(text, at):
            return None
        at.unproven(self, old, _ASKED)
        return None


def _is_asked_for(text: str, at: At) -> bool:
    """Return whether the file reads the gradient of an attribute, or names it where it asks."""
    name = re.escape(text)
    return bool(re.search(rf"(?<![\w.]){name}\.grad\b|autograd\.grad\([^\n]*{name}\b", at.code))
