"""``loss.data[0]``: torch up to 0.4 spelt ``loss.item()`` so; a loss has no axes since."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.mindspore.rules.plan import plans_of
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["FirstRule"]

_LOSSES = re.compile(r"loss|cost|criteri|entropy|evaluat|err", re.I)
_WHOLE = frozenset({"max", "mean", "median", "min", "norm", "prod", "std", "sum", "var"})


class FirstRule(PortRule):
    """``loss.data[0]`` is the number of a tensor that has no axes."""

    name = "first"
    reason = "torch up to 0.4's `loss.data[0]`: a tensor without axes gives its number"
    visits = (cst.Subscript,)

    def idle(self, at: At) -> bool:
        """Whether nothing is spelt so, or the script is a port."""
        return super().idle(at) or ".data[0]" not in at.code

    def act(self, old: cst.Subscript, new: cst.Subscript, at: At) -> Any:
        """Rewrite one subscript that is read."""
        held = old.value
        if not isinstance(held, cst.Attribute) or held.attr.value != "data":
            return None
        if len(old.slice) != 1 or code_of(old.slice[0]) != "0" or _is_set(old, at):
            return None
        base = held.value
        lossy = _LOSSES.search(code_of(base)) or code_of(base) in at.once(_losses)
        if not lossy and at.values.kind(base) != "tensor" and not _is_one(base, at):
            return None
        made = cst.Call(cst.parse_expression(wording(at, "port.first")), [cst.Arg(new.value)])
        at.note(self, old, made)
        return made


def _is_one(node: cst.BaseExpression, at: At) -> bool:
    """Return whether this is a sum over all, a mean or the like: it has no axes."""
    return any(
        isinstance(one, cst.Call)
        and not one.args
        and isinstance(one.func, cst.Attribute)
        and one.func.attr.value in _WHOLE
        for one in (node, *at.names.origins(node))
    )


def _is_set(node: cst.CSTNode, at: At) -> bool:
    """Return whether something is assigned to a subscript, or to a part of it."""
    below: Any = node
    for above in at.names.ancestors(node):
        if isinstance(above, (cst.AssignTarget, cst.AugAssign, cst.Del)):
            return getattr(above, "target", None) is below
        if not isinstance(above, (cst.Attribute, cst.Subscript)) or above.value is not below:
            return False
        below = above
    return False


def _losses(at: At) -> set[str]:
    return {code_of(sink.loss) for sink in at.once(plans_of).sinks}
