"""Values with leading axes of one that are set into a part of a tensor: MindSpore's stay out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of, string_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore_port.names import Binding
    from mpcore_port.rule import At

__all__ = ["RowRule"]

_MADE = frozenset({"empty", "full", "ones", "rand", "randn", "zeros"})
_LIKE = frozenset({"empty_like", "ones_like", "zeros_like", "arange", "linspace", "eye", "tensor"})
_SIZED = frozenset({"view", "reshape", "expand"})
_SAME = frozenset(
    "cpu cuda npu to float half double long int detach clone contiguous type".split()  # noqa: SIM905
)
_NUMBERS = (cst.BaseNumber,)
_DEPTH = 8
_UNSURE = (
    "of a tensor this part may have fewer axes than the value: torch leaves leading axes of one "
    "out, MindSpore raises"
)


class RowRule(PortRule):
    """``x[i] = torch.rand(1, n)`` sets the row without the value's first axis."""

    name = "row"
    reason = "torch leaves leading axes of one out where a part of a tensor is set"
    visits = (cst.Assign,)

    def act(self, old: cst.Assign, new: cst.Assign, at: At) -> Any:
        """Take the first axes from the value of one assignment."""
        if len(old.targets) != 1:
            return None
        target = old.targets[0].target
        if not isinstance(target, cst.Subscript) or not _takes_places(target):
            return None
        count = _leading(old.value, at)
        if count == 0 or _holds_objects(target.value, at):
            return None
        if not _is_tensor(target.value, at):
            at.unproven(self, old, _UNSURE)
            return None
        code = code_of(new.value)
        held = code if isinstance(new.value, _ATOMS) or new.value.lpar else f"({code})"
        value = cst.parse_expression(held + "[0]" * count)
        at.note(self, old.value, value)
        return new.with_changes(value=value)


_ATOMS = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)


def _takes_places(target: cst.Subscript) -> bool:
    """Return whether an index is no range, and no text: a part with fewer axes is set."""
    places = [e.slice.value for e in target.slice if isinstance(e.slice, cst.Index)]
    plain = [value for value in places if not isinstance(value, cst.Ellipsis)]
    return bool(plain) and all(string_of(value) is None for value in plain)


def _leading(node: Any, at: At, depth: int = _DEPTH) -> int:
    """Return how many axes of one surely lead a value, but for its last axis."""
    if depth == 0:
        return 0
    if isinstance(node, cst.Name):
        found = at.names.held(node)
        if not found or any(one.kind != "value" or one.value is None for one in found):
            return 0
        return min(_leading(one.value, at, depth - 1) for one in found)
    if isinstance(node, cst.BinaryOperation):
        numbers = [isinstance(side, _NUMBERS) for side in (node.left, node.right)]
        sides = [node.left, node.right]
        return _leading(sides[numbers.index(False)], at, depth - 1) if sum(numbers) == 1 else 0
    if isinstance(node, cst.Subscript):
        first = node.slice[0].slice
        new = isinstance(first, cst.Index) and code_of(first.value) == "None"
        return 1 if new and _is_tensor(node.value, at) else 0
    return _of_call(node, at, depth) if isinstance(node, cst.Call) else 0


def _of_call(node: cst.Call, at: At, depth: int) -> int:
    module, _, last = (at.names.called(node) or "").rpartition(".")
    if module == "torch":
        if last == "unsqueeze" and len(node.args) == 2 and code_of(node.args[1].value) == "0":
            return 1 + _leading(node.args[0].value, at, depth - 1)
        return _ones(node.args) if last in _MADE else 0
    if module or not isinstance(node.func, cst.Attribute):
        return 0
    name, held = node.func.attr.value, node.func.value
    if name in _SAME:
        return _leading(held, at, depth - 1)
    if name == "unsqueeze" and [code_of(arg.value) for arg in node.args] == ["0"]:
        return 1 + _leading(held, at, depth - 1)
    return _ones(node.args) if name in _SIZED else 0


def _ones(args: Sequence[cst.Arg]) -> int:
    """Return how many sizes of one lead, where all sizes are written out."""
    sizes: list[Any] = [arg.value for arg in args if arg.keyword is None]
    named = [arg.value for arg in args if arg.keyword and arg.keyword.value == "size"]
    if sizes and isinstance(sizes[0], (cst.Tuple, cst.List)):
        named = sizes[:1]
    if named:
        if not isinstance(named[0], (cst.Tuple, cst.List)):
            return 0
        sizes = [element.value for element in named[0].elements]
    if any(arg.star for arg in args):
        return 0
    ones = 0
    while ones < len(sizes) - 1 and code_of(sizes[ones]) == "1":
        ones += 1
    return ones


def _is_tensor(node: Any, at: At, asked: frozenset[str] = frozenset()) -> bool:
    """Return whether all that a name is given are tensors that torch made, and no list of them."""
    if isinstance(node, (cst.Name, cst.Attribute)):
        text = code_of(node)
        if text in asked:
            return True  # what it is given otherwise decides
        given = [_given(one) for one in at.names.held(node)]
        return bool(given) and all(_is_tensor(one, at, asked | {text}) for one in given)
    if not isinstance(node, cst.Call):
        return False
    module, _, last = (at.names.called(node) or "").rpartition(".")
    if module == "torch":
        return last in _MADE | _LIKE
    if module or not isinstance(node.func, cst.Attribute):
        return False
    return node.func.attr.value in _SAME | _SIZED and _is_tensor(node.func.value, at, asked)


def _given(binding: Binding) -> Any:
    """Return what a name is given, also as one of several: ``a, b = a.cuda(), b.cuda()``."""
    if binding.kind == "value":
        return binding.value
    if binding.kind == "element" and isinstance(binding.value, cst.Tuple):
        elements = binding.value.elements
        return elements[binding.index].value if binding.index < len(elements) else None
    return None


def _holds_objects(node: Any, at: At) -> bool:
    """Return whether a name holds a list, a dict, an array or the like: nothing leaves axes out."""
    made = (cst.List, cst.ListComp, cst.Dict, cst.DictComp, cst.Tuple, cst.BinaryOperation)
    origins = at.names.origins(node)
    if any(isinstance(one, made) or _makes_container(one, at) for one in origins):
        return True
    return at.values.kind(node) in ("neutral", "own", "module", "optimizer", "loader")


def _makes_container(node: Any, at: At) -> bool:
    return isinstance(node, cst.Call) and code_of(node.func) in ("list", "dict", "defaultdict")
