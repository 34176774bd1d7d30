"""Functions of real numbers on tensors of whole ones, for which MindSpore has no kernel on a CPU.

torch takes ``torch.log(torch.arange(1, 9))`` for the logarithm of floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["WholeRule", "is_real", "is_whole"]

_DEPTH = 8
_REAL = frozenset(
    """
    acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh cos cosh deg2rad
    digamma erf erfc erfinv exp expm1 isinf isneginf isposinf lgamma log log10 log1p log2 logit
    rad2deg rsqrt sigmoid sin sinh tan tanh
    """.split()  # noqa: SIM905  # a list of words is read
)
_MAKERS = frozenset(
    """
    arange argmax argmin argsort bincount IntTensor LongTensor randint randperm tensor as_tensor
    full full_like ones ones_like zeros zeros_like
    """.split()  # noqa: SIM905
)
_ALWAYS = frozenset({"argmax", "argmin", "argsort", "bincount", "IntTensor", "LongTensor"})
_CASTS = frozenset({"argmax", "argmin", "argsort", "bincount", "int", "long", "nonzero", "short"})
_SAME = frozenset(
    """
    abs clone cpu cuda cumsum detach expand expand_as flatten max min repeat reshape squeeze
    sum t transpose unsqueeze view
    """.split()  # noqa: SIM905
)
_LIKE = ("full_like", "ones_like", "zeros_like")
_WIDTHS = ("int16", "int32", "int64", "int", "long", "short")
_KEPT = (cst.Add, cst.FloorDivide, cst.Modulo, cst.Multiply, cst.Subtract)


class WholeRule(PortRule):
    """``torch.exp(torch.arange(n))`` takes the numbers as floats."""

    name = "whole numbers"
    reason = "torch takes whole numbers for floats here, MindSpore has no kernel for them"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Write ``.float()`` behind what one function, or method, of real numbers is given."""
        module, _, name = (at.names.called(old) or "").rpartition(".")
        if module == "torch" and name in _REAL and len(old.args) == 1 and not old.args[0].star:
            if not is_whole(old.args[0].value, at):
                return None
            made = new.with_changes(
                args=[new.args[0].with_changes(value=_floats(new.args[0].value))]
            )
        elif (
            not module
            and isinstance(old.func, cst.Attribute)
            and isinstance(new.func, cst.Attribute)
        ):
            if old.func.attr.value not in _REAL or old.args or not is_whole(old.func.value, at):
                return None
            made = new.with_changes(func=new.func.with_changes(value=_floats(new.func.value)))
        else:
            return None
        at.note(self, old, made)
        return made


def _floats(node: Any) -> cst.Call:
    if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation)) and not node.lpar:
        node = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.Call(cst.Attribute(node, cst.Name("float")))


def is_whole(node: Any, at: At, depth: int = _DEPTH) -> bool:
    """Return whether an expression surely is a tensor of whole numbers."""
    if depth == 0:
        return False
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.Minus) and is_whole(node.expression, at, depth - 1)
    if isinstance(node, cst.BinaryOperation):
        sides = (node.left, node.right)
        if not isinstance(node.operator, _KEPT):
            return False
        each = [is_whole(side, at, depth - 1) for side in sides]
        return any(each) and all(
            known or isinstance(side, cst.Integer) for known, side in zip(each, sides, strict=True)
        )
    if isinstance(node, cst.Subscript):
        return is_whole(node.value, at, depth - 1)
    if isinstance(node, (cst.Name, cst.Attribute)):
        held = at.names.origins(node)
        if not held or any(one.kind != "value" for one in at.names.held(node)):
            return False
        return all(one is not node and is_whole(one, at, depth - 1) for one in held)
    return isinstance(node, cst.Call) and _gives_whole(node, at, depth - 1)


def _gives_whole(node: cst.Call, at: At, depth: int) -> bool:
    module, _, name = (at.names.called(node) or "").rpartition(".")
    if module == "torch" and name in _MAKERS:
        return _is_made_whole(name, node, at, depth)
    if module or not isinstance(node.func, cst.Attribute):
        return False
    name, held = node.func.attr.value, node.func.value
    if name in _CASTS:
        return at.values.kind(held) == "tensor" or is_whole(held, at, depth)
    if name == "sum" and isinstance(held, cst.Comparison):
        return at.values.kind(held) == "tensor"
    if name in ("max", "min") and node.args:
        return False  # a pair
    if name == "to":
        asked = [code_of(arg) for arg in node.args]
        return (
            len(asked) == 1 and asked[0].rpartition(".")[2] in _PLACES and is_whole(held, at, depth)
        )
    return name in _SAME and "dtype" not in arguments(node, ()) and is_whole(held, at, depth)


_PLACES = ("device", "'cuda'", '"cuda"', "'cpu'", '"cpu"')


def _is_made_whole(name: str, node: cst.Call, at: At, depth: int) -> bool:
    said = arguments(node, ())
    if "dtype" in said:
        return code_of(said["dtype"]).rpartition(".")[2] in _WIDTHS
    if name in _ALWAYS or name in ("randint", "randperm"):
        return True
    if name == "arange":  # of floats, too, what is added changes nothing
        return not any(_has_float(arg.value) for arg in node.args)
    if name in _LIKE:
        return name != "full_like" and bool(node.args) and is_whole(node.args[0].value, at, depth)
    if name in ("tensor", "as_tensor"):
        return bool(node.args) and _are_integers(node.args[0].value)
    return name == "full" and len(node.args) > 1 and isinstance(node.args[1].value, cst.Integer)


def _are_integers(node: Any) -> bool:
    if isinstance(node, (cst.List, cst.Tuple)):
        return bool(node.elements) and all(_are_integers(one.value) for one in node.elements)
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.Minus) and _are_integers(node.expression)
    return isinstance(node, cst.Integer)


def _has_float(node: Any) -> bool:
    if isinstance(node, cst.Float):
        return True
    return any(map(_has_float, node.children))


def is_real(node: Any, at: At) -> bool:
    """Return whether an expression surely is a tensor of float32."""
    return any(_gives_real(one, at) for one in at.names.origins(node))


def _gives_real(node: Any, at: At) -> bool:
    if not isinstance(node, cst.Call) or "dtype" in arguments(node, ()):
        return False
    module, _, name = (at.names.called(node) or "").rpartition(".")
    if module == "torch" and name == "tensor":
        return bool(node.args) and _has_float(node.args[0].value)
    if module == "torch":
        return name in ("linspace", "ones", "rand", "randn", "zeros")
    return not node.args and not module and code_of(node.func).endswith(".float")
