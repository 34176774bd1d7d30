"""``x.resize_as_(y).copy_(y)``: a tensor that a loop fills anew, as torch up to 0.4 had it.

MindSpore resizes nothing in place; where no other name holds the tensor it is made anew, and
``x.new().resize_as_(y)`` is made in its size at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["MadeToSizeRule", "ResizedRule"]

_RESIZES = ("resize_as_", "resize_")
_MADE = "it is made anew, and another name got it before, which is filled in torch as well"


class ResizedRule(PortRule):
    """``x.resize_(y.size()).copy_(y)`` is ``x = y.type_as(x)``."""

    name = "resized"
    reason = "no other name holds the tensor: it is made anew"
    visits = (cst.Expr,)

    def idle(self, at: At) -> bool:
        """Whether nothing is resized, or the script is a port."""
        return super().idle(at) or not any(f".{name}(" in at.code for name in _RESIZES)

    def act(self, old: cst.Expr, new: cst.Expr, at: At) -> Any:
        """Write one such statement as an assignment."""
        filled, given = _method(old.value, ("copy_",))
        held, _ = _method(filled, _RESIZES)
        if isinstance(held, cst.Attribute) and held.attr.value == "data":
            held = held.value
        if not isinstance(held, cst.Name) or given is None or not _is_own(held, at):
            return None
        name = held.value
        made = cst.parse_statement(f"{name} = ({code_of(given)}).type_as({name})")
        if isinstance(given, (cst.Name, cst.Attribute)):
            made = cst.parse_statement(f"{name} = {code_of(given)}.type_as({name})")
        assigned = made.body[0]  # type: ignore[index]
        if _is_held_elsewhere(held, at):
            at.unproven(self, old, _MADE, assigned)
        else:
            at.note(self, old, assigned)
        return assigned


class MadeToSizeRule(PortRule):
    """``x.new().resize_as_(y)`` is ``x.new_empty(y.size())``."""

    name = "made to size"
    reason = "an empty tensor that nothing else holds is made in that size"
    visits = (cst.Call,)

    def idle(self, at: At) -> bool:
        """Whether no empty tensor is resized, or the script is a port."""
        return super().idle(at) or not any(f".new().{name}(" in at.code for name in _RESIZES)

    def act(self, old: cst.Call, new: Any, at: At) -> Any:
        """Write one such call as one that makes the tensor."""
        held, given = _method(old, _RESIZES)
        of = _type_of_empty(held)
        if of is None or given is None or any(arg.star or arg.keyword for arg in old.args):
            return None
        name = new.func.attr.value
        kept = new.func.value.func.value  # what `new` is called on, as it reads by now
        size = _size_of(new.args[0].value) if name == _AS else _listed(new.args)
        made = cst.Call(cst.Attribute(kept, cst.Name("new_empty")), [cst.Arg(size)])
        at.note(self, old, made)
        return made


_AS = "resize_as_"


def _type_of_empty(node: Any) -> Any:
    """Return x of ``x.new()``; None for anything else."""
    if not isinstance(node, cst.Call) or node.args or not isinstance(node.func, cst.Attribute):
        return None
    return node.func.value if node.func.attr.value == "new" else None


def _listed(args: Any) -> cst.BaseExpression:
    if len(args) == 1:
        return args[0].value  # type: ignore[no-any-return]
    return cst.Tuple([cst.Element(arg.value) for arg in args])


def _size_of(node: cst.BaseExpression) -> cst.Call:
    return cst.Call(cst.Attribute(node, cst.Name("size")))


def _method(node: Any, names: tuple[str, ...]) -> tuple[Any, Any]:
    """Return what a method of one of these names is called on, and its first argument."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None, None
    if node.func.attr.value not in names or not node.args or node.args[0].star:
        return None, None
    return node.func.value, node.args[0].value


def _is_own(name: cst.Name, at: At) -> bool:
    """Return whether a name is bound in its scope: an assignment makes no other one of it."""
    return bool(at.names.scope(name).bindings.get(name.value))


def _is_held_elsewhere(name: cst.Name, at: At) -> bool:
    """Return whether another name was given the tensor in front of this place."""
    for node in at.names.by_type[cst.Assign]:
        targets = {code_of(target.target) for target in node.targets}
        value: Any = node.value
        while isinstance(value, cst.Call) and value.args and not value.args[0].star:
            value = value.args[0].value  # Variable(x), and the like
        same = isinstance(value, cst.Name) and value.value == name.value
        if same and name.value not in targets and at.line(node) < at.line(name):
            return True
    return False
