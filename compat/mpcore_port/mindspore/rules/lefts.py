"""Numbers of numpy that stand to the left of a tensor: numpy would make an array of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["LeftRule"]

_OPERATORS = (cst.Add, cst.Subtract, cst.Multiply, cst.Divide, cst.Power, cst.FloorDivide)
_GIVE_NUMBERS = {
    "numpy." + name
    for name in ("cos", "exp", "float32", "float64", "log", "log10", "log2", "power", "prod", "sin")
}
_GIVE_NUMBERS |= {"numpy.sqrt", "numpy.square"}
_ARITHMETIC = (cst.BinaryOperation, cst.UnaryOperation)
_NOT_SEEN = "taken for a number of numpy: nothing in this file says that it is no array"
_PLAIN = ("abs", "float", "int", "len", "max", "min", "round")
_NAMES = (cst.Name, cst.Attribute)
_DEPTH = 6


class LeftRule(PortRule):
    """``np.sqrt(3) * x`` of a tensor x is a tensor's product with a number of Python."""

    name = "left"
    reason = "a number of numpy in front of a tensor makes an array: MindSpore's has no priority"
    visits = (cst.BinaryOperation,)

    def act(self, old: cst.BinaryOperation, new: Any, at: At) -> Any:
        """Write the number to the left as one of Python."""
        if not isinstance(old.operator, _OPERATORS) or at.values.kind(old.right) != "tensor":
            return None
        found = _number(old.left, at)
        if not found:
            return None
        made = new.with_changes(left=cst.Call(cst.Name("float"), [cst.Arg(_bare(new.left))]))
        if found == "surely":
            at.note(self, old, made)
        else:
            at.unproven(self, old, _NOT_SEEN, made)
        return made


def _bare(node: Any) -> Any:
    return node.with_changes(lpar=[], rpar=[])


def _number(node: Any, at: At, depth: int = _DEPTH) -> str:
    """Return ``"surely"`` or ``"perhaps"`` for a number that numpy gives, ``""`` for all else."""
    if depth == 0 or at.values.kind(node) == "tensor":
        return ""
    if isinstance(node, _NAMES):
        held = [one for one in at.names.origins(node) if one is not node]
        kinds = {_number(one, at, depth - 1) for one in held}
        return _weakest(kinds) if kinds else ""
    if isinstance(node, _ARITHMETIC):
        return _of_sides(node, at, depth)
    if not isinstance(node, cst.Call) or at.names.called(node) not in _GIVE_NUMBERS:
        return ""
    if not node.args or any(arg.keyword for arg in node.args):
        return ""
    return _weakest({_argument(arg.value, at) for arg in node.args})


def _of_sides(node: Any, at: At, depth: int) -> str:
    """Return what numpy makes of a number of its own and what stands beside it."""
    if isinstance(node, cst.UnaryOperation):
        return _number(node.expression, at, depth - 1)
    sides = (node.left, node.right)
    numbers = [_number(side, at, depth - 1) for side in sides]
    if not any(numbers):
        return ""
    return _weakest({n or _argument(side, at) for n, side in zip(numbers, sides, strict=True)})


def _argument(node: Any, at: At) -> str:
    """Return ``"surely"`` for a plain number, ``"perhaps"`` where nobody knows, ``""`` for more."""
    if isinstance(node, cst.BaseNumber):
        return "surely"
    if at.values.kind(node) == "tensor":
        return ""
    if isinstance(node, cst.UnaryOperation):
        return _argument(node.expression, at)
    if isinstance(node, cst.BinaryOperation):
        return _weakest({_argument(side, at) for side in (node.left, node.right)})
    if isinstance(node, cst.Call):
        return "surely" if _is_count(node, at) else ""
    if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Attribute):
        return "surely" if node.value.attr.value == "shape" else ""
    if isinstance(node, _NAMES):
        held = [one for one in at.names.origins(node) if not isinstance(one, _NAMES)]
        return _weakest({_argument(one, at) for one in held}) if held else "perhaps"
    return ""


def _weakest(kinds: set[str]) -> str:
    return "" if "" in kinds else min(kinds)


def _is_count(node: cst.Call, at: At) -> bool:
    """Return whether a call gives one plain number: ``len(x)``, ``x.size(1)``."""
    if isinstance(node.func, cst.Name):
        return node.func.value in _PLAIN
    last = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
    whole = last in ("dim", "numel") or (last == "size" and bool(node.args))
    return whole and at.values.kind(node) == "neutral"
