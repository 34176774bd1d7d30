"""Tensors that an array of numpy takes numbers out of: MindSpore's take lists and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, is_number_of_numpy, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["EmptyRule", "IndexRule"]

_ARRAYS = ("arange", "argsort", "array", "asarray", "flatnonzero", "random.permutation", "unique")
_SIZED = {"random.choice": 2, "random.randint": 3}  # a number where no size is given
_ROWS = ("numpy.r_", "numpy.mgrid")
_SAME = ("astype", "copy", "flatten", "ravel", "reshape")
_DEPTH = 6


class IndexRule(PortRule):
    """``x[places]`` with an array of numpy takes it as a list."""

    name = "index"
    reason = "MindSpore's tensors take lists and Python's numbers, none of numpy's"
    visits = (cst.Subscript,)

    def act(self, old: cst.Subscript, new: cst.Subscript, at: At) -> Any:
        """Rewrite the places of one subscript."""
        if not any(name.startswith("torch") for name, _ in at.names.imports):
            return None
        elements, changed = [], False
        for before, element in zip(old.slice, new.slice, strict=True):
            index: Any = element.slice
            if isinstance(before.slice, cst.Slice):
                bounded = _bounded(before.slice, index, at)
                changed = changed or bounded is not index
                elements.append(element.with_changes(slice=bounded))
                continue
            value = before.slice.value if isinstance(before.slice, cst.Index) else None
            if value is not None and _are_places(value, at):
                code = f"tuple(one.tolist() for one in {code_of(index.value)})"
                element = element.with_changes(
                    slice=index.with_changes(value=cst.parse_expression(code))
                )
                changed = True
            elif value is not None and _is_mask(value, at) and _is_beside(old, before):
                places = cst.parse_expression(wording(at, f"port.places({code_of(index.value)})"))
                element = element.with_changes(slice=index.with_changes(value=places))
                changed = True
            elif value is not None and _is_one_of_numpy(value, at):
                number = cst.parse_expression(f"int({code_of(index.value)})")
                element = element.with_changes(slice=index.with_changes(value=number))
                changed = True
            elif value is not None and _is_array(value, at):
                held = index.value
                if isinstance(held, cst.BinaryOperation) and not held.lpar:
                    held = held.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
                func = cst.Attribute(held, cst.Name("tolist"))
                element = element.with_changes(slice=index.with_changes(value=cst.Call(func)))
                changed = True
            elements.append(element)
        if not changed or _is_array(old.value, at):
            return None
        made = new.with_changes(slice=elements)
        at.note(self, old, made)
        return made


def _bounded(old: cst.Slice, new: cst.Slice, at: At) -> cst.Slice:
    """Return a slice whose bounds are Python's numbers where numpy's may stand."""
    made = {}
    for part in ("lower", "upper", "step"):
        bound = getattr(old, part)
        if bound is not None and is_number_of_numpy(bound, at):
            code = f"int({code_of(getattr(new, part))})"
            made[part] = cst.parse_expression(code)
    return new.with_changes(**made) if made else new


_TRUTHS = ("eq", "ge", "gt", "le", "logical_and", "logical_not", "logical_or", "lt", "ne", "bool")


def _is_mask(node: Any, at: At) -> bool:
    """Return whether an index surely is a tensor of truths."""
    for one in [node, *at.names.origins(node)]:
        if isinstance(one, cst.Comparison) and at.values.kind(one) == "tensor":
            return True
        called = isinstance(one, cst.Call) and isinstance(one.func, cst.Attribute)
        if called and one.func.attr.value in _TRUTHS and at.values.kind(one) == "tensor":
            return True
    return False


def _is_beside(node: cst.Subscript, mask: cst.SubscriptElement) -> bool:
    """Return whether other places stand beside a mask, not only slices."""
    others = [one.slice for one in node.slice if one is not mask]
    return any(
        isinstance(one, cst.Index)
        and not isinstance(one.value, (cst.Ellipsis, cst.Integer))
        and code_of(one.value) != "None"
        for one in others
    )


_ONE = ("argmax", "argmin", "int32", "int64", "random.choice")


def _is_one_of_numpy(node: Any, at: At) -> bool:
    """Return whether an index surely is one number of numpy's, out of an array or of a call."""
    if not isinstance(node, (cst.Name, cst.Call)):
        return False
    if isinstance(node, cst.Name):
        held = at.names.held(node)
        loops = [b.value for b in held if b.kind == "for"]
        if loops:
            return len(loops) == len(held) and all(_is_array(one, at) for one in loops)
    origins = at.names.origins(node)
    return bool(origins) and all(_gives_one(one, at) for one in origins)


def _gives_one(node: Any, at: At) -> bool:
    module, _, last = (at.names.called(node) or "").partition(".")
    return module == "numpy" and last in _ONE and len(node.args) == 1


_REDUCED = {"sum": "port.total", "mean": "port.average"}


class EmptyRule(PortRule):
    """``loss[mask].sum()`` is 0 where the mask takes nothing, as torch has it."""

    name = "empty"
    reason = "MindSpore 2.10 on a CPU sums no numbers to what its memory holds"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: Any, at: At) -> Any:
        """Replace the sum, or mean, of all that a mask takes out."""
        if at.options.plain or not isinstance(new, cst.Call):
            return None
        module, _, name = (at.names.called(old) or "").rpartition(".")
        held: Any = None
        made: Any = None
        if module == "torch" and len(old.args) == len(new.args) == 1 and not old.args[0].star:
            held, made = old.args[0].value, new.args[0].value
        elif not module and isinstance(old.func, cst.Attribute) and not old.args:
            name, held = old.func.attr.value, old.func.value
            made = new.func.value if isinstance(new.func, cst.Attribute) else None
        if name not in _REDUCED or held is None or made is None or not _is_masked(held, at):
            return None
        call = cst.parse_expression(wording(at, f"{_REDUCED[name]}({code_of(made)})"))
        at.note(self, old, call)
        return call


def _is_masked(node: Any, at: At, depth: int = _DEPTH) -> bool:
    """Return whether an expression is what a mask takes out of a tensor, or may be."""
    if depth == 0:
        return False
    return any(_takes_out(one, at, depth - 1) for one in {node, *at.names.origins(node)})


_EACH = frozenset(
    {"abs", "clamp", "double", "exp", "float", "int", "log", "long", "neg", "pow", "sigmoid"}
    | {"sqrt", "square"}
)


def _takes_out(node: Any, at: At, depth: int) -> bool:
    if isinstance(node, cst.BinaryOperation):
        return _is_masked(node.left, at, depth) or _is_masked(node.right, at, depth)
    if isinstance(node, cst.UnaryOperation):
        return _is_masked(node.expression, at, depth)
    if isinstance(node, cst.Subscript) and len(node.slice) == 1:
        index = node.slice[0].slice
        return isinstance(index, cst.Index) and _is_mask(index.value, at)
    if not isinstance(node, cst.Call):
        return False
    module, _, last = (at.names.called(node) or "").rpartition(".")
    if module == "torch" and last in _EACH and node.args:
        return _is_masked(node.args[0].value, at, depth)
    if module or not isinstance(node.func, cst.Attribute):
        return False
    name = node.func.attr.value
    return name == "masked_select" or (name in _EACH and _is_masked(node.func.value, at, depth))


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
