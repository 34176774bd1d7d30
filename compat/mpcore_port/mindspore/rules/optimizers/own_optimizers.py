"""Optimizers that a script writes itself: a class over ``torch.optim.Optimizer``.

Nothing is differentiated in its methods: what they change in place is given other values, and
``p.data`` is ``p``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_port.rule import At

__all__ = [
    "BASES",
    "OwnStepRule",
    "in_own_step",
    "is_own_optimizer",
    "is_step_value",
]

BASES = frozenset({"torch.optim.Optimizer", "torch.optim.optimizer.Optimizer"})
_VIEWS = frozenset(
    """
    chunk detach diagonal expand flatten narrow permute reshape split squeeze t transpose unbind
    unsqueeze view view_as
    """.split()  # noqa: SIM905  # a list of words is read
)


def is_own_optimizer(node: Any, at: At) -> bool:
    """Return whether a class of the file is an optimizer over torch's base of all."""
    return isinstance(node, cst.ClassDef) and bool(at.names.bases(node) & BASES)


def in_own_step(node: cst.CSTNode, at: At) -> bool:
    """Return whether a node stands in a method of such a class."""
    return any(is_own_optimizer(above, at) for above in at.names.ancestors(node))


def is_step_value(held: Any, at: At) -> bool:
    """Return whether what a method in place is called on is a whole tensor of a step.

    A Parameter, a gradient, a value of the state: no part of one, and no view.
    """
    while isinstance(held, cst.Call) and isinstance(held.func, cst.Attribute):
        if not held.func.attr.value.endswith("_"):
            return False
        held = held.func.value
    if isinstance(held, cst.Subscript):
        return all(_is_key(element.slice) for element in held.slice)
    if isinstance(held, cst.Attribute):
        return held.attr.value == "grad" or isinstance(held.value, cst.Name)
    if not isinstance(held, cst.Name):
        return False
    found = at.names.scope(held).find(held.value)
    return bool(found) and not any(_is_view(one) for b in found for one in _values(b.value))


def _is_key(index: Any) -> bool:
    return isinstance(index, cst.Index) and isinstance(
        index.value, (cst.SimpleString, cst.Name, cst.Attribute)
    )


def _values(value: Any) -> Iterator[Any]:
    if isinstance(value, cst.IfExp):
        yield from (value.body, value.orelse)
    elif value is not None:
        yield value


def _is_view(value: Any) -> bool:
    """Return whether a value is a view, or a part, of another tensor."""
    if isinstance(value, cst.Subscript):
        return not all(_is_key(element.slice) for element in value.slice)
    if not isinstance(value, cst.Call) or _last(value) not in _VIEWS:
        return False
    inner = value.func.value if isinstance(value.func, cst.Attribute) else None
    # torch.clone(x).detach(): of what no name holds
    return not (isinstance(inner, cst.Call) and _last(inner) not in _VIEWS)


def _last(call: cst.Call) -> str:
    return code_of(call.func).rpartition(".")[2]


class OwnStepRule(PortRule):
    """What a step asks of ``p.data``, of sparse gradients, and ``torch.max(a, b, out=a)``."""

    name = "own step"
    reason = "nothing is differentiated in a step"
    visits = (cst.Attribute, cst.Call)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one place of a method of an optimizer; what comes of it is torch's still."""
        if not in_own_step(old, at):
            return None
        if isinstance(old, cst.Call):
            return self._into(old, new, at)
        parent = at.names.parents.get(old)
        if at.names.is_assigned(old):
            return None
        if isinstance(parent, cst.Call) and parent.func is old:
            return None
        if old.attr.value == "is_sparse":
            at.note(self, old, "False", reason="gradients of MindSpore's layers are dense")
            return cst.Name("False")
        if old.attr.value != "data" or code_of(old.value) == "self":
            return None
        at.note(self, old, new.value)
        return new.value

    def _into(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Copy what ``torch.max(a, b, out=c)`` makes into ``c``, where that is a line."""
        given = [arg for arg in new.args if arg.keyword is not None and arg.keyword.value == "out"]
        name = at.names.called(old) or ""
        if len(given) != 1 or not name.startswith("torch."):
            return None
        if not isinstance(at.names.parents.get(old), cst.Expr):
            return None
        args = [arg for arg in new.args if arg is not given[0]]
        args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        func = cst.Attribute(given[0].value, cst.Name("copy_"))
        made = cst.Call(func, [cst.Arg(new.with_changes(args=args))])
        at.note(self, old, made, reason="what it makes is copied into the tensor")
        return made
