"""Tensors that an array of numpy takes numbers out of: MindSpore's take lists and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["IndexRule"]

_ARRAYS = ("arange", "argsort", "array", "asarray", "flatnonzero", "random.permutation", "unique")
_SIZED = {"random.choice": 2, "random.randint": 3}  # a number where no size is given
_ONE = frozenset(
    {"argmax", "argmin", "random.choice", "random.randint", "floor", "ceil", "int32", "int64"}
    | {"prod", "sum", "max", "min", "searchsorted", "round"}
)
_ROWS = ("numpy.r_", "numpy.mgrid")
_SAME = ("astype", "copy", "flatten", "ravel", "reshape")
_DEPTH = 6


class IndexRule(PortRule):
    """``x[places]`` with an array of numpy takes it as a list."""

    name = "index"
    reason = "MindSpore's tensors take lists, no arrays of numpy"
    visits = (cst.Subscript,)

    def act(self, old: cst.Subscript, new: cst.Subscript, at: At) -> Any:
        """Rewrite the places of one subscript."""
        if not any(name.startswith("torch") for name, _ in at.names.imports):
            return None
        elements, changed = [], False
        for before, element in zip(old.slice, new.slice, strict=True):
            index: Any = element.slice
            value = before.slice.value if isinstance(before.slice, cst.Index) else None
            if value is not None and _are_places(value, at):
                code = f"tuple(one.tolist() for one in {code_of(index.value)})"
                element = element.with_changes(
                    slice=index.with_changes(value=cst.parse_expression(code))
                )
                changed = True
            elif value is not None and _is_array(value, at):
                held = index.value
                if isinstance(held, cst.BinaryOperation) and not held.lpar:
                    held = held.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
                func = cst.Attribute(held, cst.Name("tolist"))
                element = element.with_changes(slice=index.with_changes(value=cst.Call(func)))
                changed = True
            elif (made := _numbered(before.slice, index, at)) is not None:
                element, changed = element.with_changes(slice=made), True
            elements.append(element)
        if not changed or _is_array(old.value, at) or _is_python(old.value, at):
            return None
        made = new.with_changes(slice=elements)
        at.note(self, old, made)
        return made


def _numbered(before: Any, index: Any, at: At) -> Any:
    """Return a place, or a range, whose numbers may be numpy's; None where they are not."""
    parts = ("value",) if isinstance(before, cst.Index) else ("lower", "upper", "step")
    held = {part: getattr(before, part) for part in parts}
    given = {
        part: cst.parse_expression(wording(at, f"port.index({code_of(getattr(index, part))})"))
        for part, node in held.items()
        if node is not None and _may_be_number(node, at)
    }
    return index.with_changes(**given) if given else None


def _is_python(node: Any, at: At) -> bool:
    """Return whether this surely is a list, a text or the like: it takes numbers of numpy."""
    return isinstance(node, cst.Name | cst.Attribute) and at.values.kind(node) == "neutral"


def _may_be_number(node: Any, at: At, depth: int = _DEPTH) -> bool:
    """Return whether an expression may be a number of numpy's, or an array of some."""
    if depth == 0:
        return False
    if isinstance(node, cst.BinaryOperation):
        return any(_may_be_number(side, at, depth - 1) for side in (node.left, node.right))
    if isinstance(node, cst.UnaryOperation):
        return _may_be_number(node.expression, at, depth - 1)
    if isinstance(node, cst.Name):
        loops = (b.node for b in at.names.held(node) if isinstance(b.node, cst.For | cst.CompFor))
        if any(_goes_over(loop.iter, at, depth) for loop in loops):
            return True
        origins = at.names.origins(node)
        return any(one is not node and _may_be_number(one, at, depth - 1) for one in origins)
    return _is_array(node, at, depth - 1) or (
        isinstance(node, cst.Call) and _gives_number(node, at)
    )


def _gives_number(call: cst.Call, at: At) -> bool:
    """Return whether a function of numpy gives one number, or perhaps."""
    module, _, last = (at.names.called(call) or "").partition(".")
    return module == "numpy" and last in _ONE


def _goes_over(node: Any, at: At, depth: int) -> bool:
    """Return whether a loop goes through an array of numpy, not counted."""
    return _is_array(node, at, depth - 1)


def _is_followed(node: cst.CSTNode, at: At) -> bool:
    """Return whether all that a name is given is in sight: no loop gives it, no other file."""
    given = at.names.held(node)
    return all(b.kind == "value" or at.names.passed(b) for b in given)


def _are_places(node: Any, at: At) -> bool:
    """Return whether an expression surely is what ``np.where(mask)`` gives: an array an axis."""
    if isinstance(node, cst.Name) and not _is_followed(node, at):
        return False
    calls = [node] if isinstance(node, cst.Call) else at.names.origins(node)
    return bool(calls) and all(
        isinstance(one, cst.Call)
        and at.names.called(one) in ("numpy.where", "numpy.nonzero")
        and len(one.args) == 1
        for one in calls
    )


def _is_array(node: Any, at: At, depth: int = _DEPTH) -> bool:
    """Return whether an expression surely is an array of numpy."""
    if depth == 0:
        return False
    if isinstance(node, (cst.Name, cst.Attribute)):
        origins = list(at.names.origins(node))
        return (
            bool(origins)
            and _is_followed(node, at)
            and all(one is not node and _is_array(one, at, depth - 1) for one in origins)
        )
    if isinstance(node, cst.BinaryOperation):
        return _is_array(node.left, at, depth - 1) or _is_array(node.right, at, depth - 1)
    if isinstance(node, cst.Subscript) and at.names.qualified(node.value) in _ROWS:
        return True
    if isinstance(node, cst.Subscript):
        return _is_array(node.value, at, depth - 1)  # a part, or a number of numpy's
    if not isinstance(node, cst.Call):
        return False
    module, _, last = (at.names.called(node) or "").partition(".")
    if module == "numpy":
        named = any(arg.keyword is not None and arg.keyword.value == "size" for arg in node.args)
        return last in _ARRAYS or (last in _SIZED and (named or len(node.args) >= _SIZED[last]))
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "numpy":
        return not node.args  # of a tensor: an array, or a number of numpy's
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in _SAME:
        return _is_array(node.func.value, at, depth - 1)
    return False
