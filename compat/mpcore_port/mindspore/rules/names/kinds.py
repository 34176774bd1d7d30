"""Python's own types where torch takes a dtype: ``torch.ones(n, dtype=bool)``, ``x.to(int)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["KindRule", "SameKindRule"]

_MEANT = {"bool": "bool", "int": "int64", "float": "float64"}
_METHODS = ("to", "type")
_TYPED = ("cumsum", "mean", "new_empty", "new_full", "new_ones", "new_zeros", "prod", "sum", "to")


class KindRule(PortRule):
    """A type of Python becomes the dtype that torch takes it for."""

    name = "dtype"
    reason = "torch takes Python's type for this dtype"
    visits = (cst.Arg,)

    def act(self, old: cst.Arg, new: cst.Arg, at: At) -> Any:
        """Write one argument as torch's own dtype; it is ported like any other."""
        value = old.value
        if not isinstance(value, cst.Name) or value.value not in _MEANT:
            return None
        call = at.names.parents.get(old)
        if not isinstance(call, cst.Call) or at.names.scope(value).find(value.value):
            return None
        torch = next((name for name, module in _imported(at) if module == "torch"), "")
        if not torch or not _is_dtype(old, call, at):
            return None
        made = cst.Attribute(cst.Name(torch), cst.Name(_MEANT[value.value]))
        at.note(self, value, made)
        return new.with_changes(value=made)


class SameKindRule(PortRule):
    """``x.type() == y.type()`` asks whether two tensors are of one dtype."""

    name = "same dtype"
    reason = "all tensors are on one device: their types differ where their dtypes do"
    visits = (cst.Comparison,)

    def idle(self, at: At) -> bool:
        """Whether no types are asked for, or the script is a port."""
        return super().idle(at) or ".type()" not in at.code

    def act(self, old: cst.Comparison, new: cst.Comparison, at: At) -> Any:
        """Compare the dtypes of two tensors; what comes of it is torch's still."""
        if len(old.comparisons) != 1:
            return None
        asked = old.comparisons[0]
        if not isinstance(asked.operator, (cst.Equal, cst.NotEqual)):
            return None
        left, right = _typed(new.left, at), _typed(new.comparisons[0].comparator, at)
        if left is None or right is None:
            return None
        second = new.comparisons[0].with_changes(comparator=right)
        made = new.with_changes(left=left, comparisons=[second])
        at.note(self, old, made)
        return made


def _typed(node: Any, at: At) -> Any:
    """Return ``x.dtype`` for ``x.type()``; None for anything else."""
    if not isinstance(node, cst.Call) or node.args or not isinstance(node.func, cst.Attribute):
        return None
    if node.func.attr.value != "type" or at.names.called(node) is not None:
        return None
    held = node.func.value
    if isinstance(held, cst.Attribute) and held.attr.value == "data":
        held = held.value
    return cst.Attribute(held, cst.Name("dtype"))


def _is_dtype(arg: cst.Arg, call: cst.Call, at: At) -> bool:
    """Return whether an argument is a dtype of torch's: by its keyword, or as ``x.to(bool)``."""
    name, func = at.names.called(call), call.func
    keyword = arg.keyword.value if arg.keyword is not None else ""
    if name is not None:
        return keyword == "dtype" and name.startswith("torch.")
    if not isinstance(func, cst.Attribute):
        return False
    if keyword == "dtype":
        return func.attr.value in _TYPED and at.values.kind(func.value) in ("tensor", "torch")
    alone = not keyword and len(call.args) == 1 and func.attr.value in _METHODS
    return alone and at.values.kind(func.value) in ("tensor", "torch", "unknown")


def _imported(at: At) -> list[tuple[str, str]]:
    """Return the names of imports at the top, with what they mean."""
    bindings = at.names.top.bindings.items()
    return [(name, one.qualified) for name, held in bindings for one in held if one.qualified]
