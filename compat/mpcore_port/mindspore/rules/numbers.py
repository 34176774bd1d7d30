"""Numbers of numpy in front of a tensor: ``np.sqrt(2.0) * y`` is numpy's array in MindSpore.

An array has no gradient. The runtime has numpy leave such sums to the tensor, as torch does; what
is in sight is a number of Python's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of
from mpcore_port.values import UNKNOWN

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["NumberRule"]

_DEPTH = 6
_NUMBERS = frozenset(
    """
    abs absolute ceil cos exp float16 float32 float64 floor int32 int64 log log10 log1p log2 max
    mean min power prod sin sqrt square std sum tan tanh var
    """.split()  # noqa: SIM905  # a list of words is read
)


class NumberRule(PortRule):
    """``np.sqrt(2.0) * y`` takes the number."""

    name = "number"
    reason = "a number of numpy in front of a tensor of MindSpore makes an array, without gradients"
    visits = (cst.BinaryOperation,)

    def idle(self, at: At) -> bool:
        """Whether nothing is numpy's, or the script is a port."""
        return super().idle(at) or "numpy" not in at.code

    def act(self, old: cst.BinaryOperation, new: cst.BinaryOperation, at: At) -> Any:
        """Take the number on the left of one operation."""
        if not _is_numpys(old.left, at) or at.values.kind(old.right) not in _TENSORS:
            return None
        code = code_of(new.left.with_changes(lpar=(), rpar=()))
        word = "float" if at.options.plain else wording(at, "port.number")
        made = cst.parse_expression(f"{word}({code})")
        at.note(self, old.left, made)
        return new.with_changes(left=made)


_TENSORS = ("tensor", "torch", "foreign", "own", UNKNOWN)


def _is_numpys(node: Any, at: At, depth: int = _DEPTH) -> bool:
    """Return whether an expression may be a number of numpy's, as far as the file says it."""
    if depth == 0:
        return False
    if isinstance(node, cst.UnaryOperation):
        return _is_numpys(node.expression, at, depth - 1)
    if isinstance(node, cst.BinaryOperation):
        sides = (node.left, node.right)
        if any(at.values.kind(side) == "tensor" for side in sides):
            return False
        return any(_is_numpys(side, at, depth - 1) for side in sides)
    if isinstance(node, (cst.Name, cst.Attribute)):
        origins = at.names.origins(node)
        return any(one is not node and _is_numpys(one, at, depth - 1) for one in origins)
    if not isinstance(node, cst.Call):
        return False
    module, _, last = (at.names.called(node) or "").partition(".")
    return module == "numpy" and last in _NUMBERS
