"""``loss.data[0]``: torch up to 0.4 spelt ``loss.item()`` so; a loss has no axes since.

So did ``loss.data.cpu().numpy()[0]``, and what a function of another file measures (``accuracy``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.losses.plan import plans_of
from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of
from mpcore_port.values import UNKNOWN

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["FirstRule", "is_set"]

_LOSSES = re.compile(r"loss|cost|criteri|entropy|evaluat|err", re.I)
_SPELT = re.compile(r"\bdata(\.cpu\(\))?(\.numpy\(\))?\[0\]")
_CHAIN = frozenset({"cpu", "data", "detach", "numpy"})
_OLD = re.compile(r"\bvolatile\b|\bVariable\(|\basync=|\bclip_grad_norm\(")
"""What scripts say that were written for torch up to 0.4."""
_PERHAPS = ("foreign", "torch", UNKNOWN)
_WHOLE = frozenset({"max", "mean", "median", "min", "norm", "prod", "std", "sum", "var"})


class FirstRule(PortRule):
    """``loss.data[0]`` is the number of a tensor that has no axes."""

    name = "first"
    reason = "torch up to 0.4's `loss.data[0]`: a tensor without axes gives its number"
    visits = (cst.Subscript,)

    def idle(self, at: At) -> bool:
        """Whether nothing is spelt so, or the script is a port."""
        return super().idle(at) or not _SPELT.search(at.code)

    def act(self, old: cst.Subscript, new: cst.Subscript, at: At) -> Any:
        """Rewrite one subscript that is read."""
        if len(old.slice) != 1 or code_of(old.slice[0]) != "0" or is_set(old, at):
            return None
        base = _base(old.value)
        if base is None:
            return None
        lossy = _LOSSES.search(code_of(base)) or code_of(base) in at.once(_losses)
        if not lossy and not _is_one(base, at) and not _may_be_one(old.value, base, at):
            return None
        made = cst.Call(cst.parse_expression(wording(at, "port.first")), [cst.Arg(new.value)])
        at.note(self, old, made)
        return made


def _base(node: Any) -> Any:
    """Return ``loss`` of ``loss.data``, ``loss.data.cpu().numpy()`` and the like, else None."""
    seen = set()
    while True:
        inner = node.func if isinstance(node, cst.Call) and not node.args else node
        called = inner is not node
        if not isinstance(inner, cst.Attribute) or inner.attr.value not in _CHAIN:
            return node if "data" in seen else None
        if called == (inner.attr.value == "data"):
            return None
        seen.add(inner.attr.value)
        node = inner.value


def _may_be_one(chain: Any, base: Any, at: At) -> bool:
    """Return whether ``base.data`` is a tensor, or in a script of old torch perhaps."""
    if not isinstance(chain, cst.Attribute):
        return False
    if at.values.kind(base) == "tensor":
        return True
    named = isinstance(base, (cst.Name, cst.Attribute)) and not code_of(base).startswith("self")
    return named and bool(_OLD.search(at.code)) and at.values.kind(base) in _PERHAPS


def _is_one(node: cst.BaseExpression, at: At) -> bool:
    """Return whether this is a sum over all, a mean or the like: it has no axes."""
    return any(
        isinstance(one, cst.Call)
        and not one.args
        and isinstance(one.func, cst.Attribute)
        and one.func.attr.value in _WHOLE
        for one in (node, *at.names.origins(node))
    )


def is_set(node: cst.CSTNode, at: At) -> bool:
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
