"""Numbers of numpy in front of a tensor: ``np.sqrt(2.0) * y`` is numpy's array in MindSpore.

An array has no gradient. The runtime has numpy leave such sums to the tensor, as torch does; what
is in sight is a number of Python's. So is one that is handed to functions, layers and methods of
torch, as a size, an axis or a bound: many of MindSpore's take Python's alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.mindspore.rules.values.indexes import is_number
from mpcore_port.names import code_of
from mpcore_port.values import UNKNOWN

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["GivenNumberRule", "NumberRule"]

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


_TYPED = frozenset({"as_tensor", "asarray", "from_numpy", "scalar_tensor", "tensor"})
"""What takes the dtype of a number that it is handed."""
_COUNTED = re.compile(r"torch\.nn\.(Linear|Bilinear|Conv\w+|Embedding|\w+Norm\w*|LSTM|GRU|RNN)")
"""Layers whose sizes are written as numbers anyway."""
_PARTS = (cst.Tuple, cst.List)


class GivenNumberRule(PortRule):
    """``F.pad(x, (n, n))`` takes numbers of Python, where ``n`` is numpy's."""

    name = "given number"
    reason = "functions of MindSpore take numbers of Python's alone"
    visits = (cst.Call,)

    def idle(self, at: At) -> bool:
        """Whether nothing is numpy's, or the script is a port."""
        return super().idle(at) or "numpy" not in at.code

    def act(self, old: cst.Call, new: Any, at: At) -> Any:
        """Take the numbers of one call."""
        if not isinstance(new, cst.Call) or not _is_of_torch(old, at):
            return None
        args = [
            arg if before.star else arg.with_changes(value=self._one(before.value, arg.value, at))
            for before, arg in zip(old.args, new.args, strict=False)
        ]
        changed = any(a.value is not b.value for a, b in zip(args, new.args, strict=False))
        return new.with_changes(args=args) if changed and len(args) == len(new.args) else None

    def _one(self, old: Any, new: Any, at: At) -> Any:
        if isinstance(old, _PARTS) and isinstance(new, _PARTS):
            each = [
                part.with_changes(value=self._one(before.value, part.value, at))
                if isinstance(before, cst.Element)
                else part
                for before, part in zip(old.elements, new.elements, strict=True)
            ]
            return new.with_changes(elements=each)
        if not is_number(old, at):
            return new
        word = "int" if at.options.plain else wording(at, "port.number")
        made = cst.parse_expression(f"{word}({code_of(new)})")
        at.note(self, old, made)
        return made


def _is_of_torch(call: cst.Call, at: At) -> bool:
    name = at.names.called(call)
    if name is None:
        func = call.func
        return isinstance(func, cst.Attribute) and at.values.kind(func.value) == "tensor"
    module, _, last = name.rpartition(".")
    if module not in ("torch", "torch.nn", "torch.nn.functional"):
        return False
    return last not in _TYPED and _COUNTED.match(name) is None
