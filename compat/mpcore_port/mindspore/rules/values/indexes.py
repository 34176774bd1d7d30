"""Tensors that numpy's arrays and numbers take parts of: MindSpore's take lists, tensors, ints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, is_number_of_numpy, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["EmptyRule", "IndexRule", "is_array", "is_number"]

_ARRAYS = frozenset(
    """
    append arange argsort array array_split asarray concatenate cumprod cumproduct cumsum delete
    flatnonzero hstack intersect1d linspace random.permutation repeat setdiff1d sort tile union1d
    unique
    """.split()  # noqa: SIM905  # a list of words is read
)
_EACH_AXIS = ("numpy.where", "numpy.nonzero")
_SIZED = {"random.choice": 2, "random.randint": 3}  # a number where no size is given
_ROWS = ("numpy.r_", "numpy.mgrid")
_SAME = ("astype", "copy", "flatten", "ravel", "reshape")
_DEPTH = 6
_OF_EACH = {"ceil", "floor", "int32", "int64", "intp", "rint", "round"}
_NUMBERS = _OF_EACH | {
    "amax",
    "amin",
    "argmax",
    "argmin",
    "count_nonzero",
    "max",
    "min",
    "prod",
    "sum",
}
_OF_ARRAYS = ("argmax", "argmin", "max", "min", "prod", "sum")
_LISTS = ("list", "reversed", "sorted", "tqdm", "tqdm.tqdm")
_AS_INT = "MindSpore's tensors are indexed by Python's own numbers, by none of numpy's"
_ONE = "a tensor with an axis of its own is no bound of a slice in MindSpore"


class IndexRule(PortRule):
    """``x[places]`` takes an array of numpy as a list, a number of numpy as one of Python."""

    name = "index"
    reason = "MindSpore's tensors take lists and Python's numbers, none of numpy's"
    visits = (cst.Subscript,)

    def act(self, old: cst.Subscript, new: cst.Subscript, at: At) -> Any:
        """Rewrite the places of one subscript."""
        if not any(name.startswith("torch") for name, _ in at.names.imports):
            return None
        elements, changed, reason = [], False, ""
        for before, element in zip(old.slice, new.slice, strict=True):
            index: Any = element.slice
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
            elif value is not None and is_array(value, at):
                element = element.with_changes(slice=index.with_changes(value=_listed(index.value)))
                changed = True
            elif value is not None and (made := self._number(old, value, index.value, at)):
                element = element.with_changes(slice=index.with_changes(value=made))
                changed, reason = True, _AS_INT
            elif value is not None and not at.options.plain and _may_be_array(value, at):
                made = cst.parse_expression(wording(at, f"port.index({code_of(index.value)})"))
                element = element.with_changes(slice=index.with_changes(value=made))
                changed = True
            elif isinstance(before.slice, cst.Slice):
                bounds, why = _bounds(before.slice, index, at)
                if bounds:
                    element = element.with_changes(slice=index.with_changes(**bounds))
                    changed, reason = True, why
            elements.append(element)
        if not changed or is_array(old.value, at) or at.values.kind(old.value) == "neutral":
            return None
        made = new.with_changes(slice=elements)
        at.note(self, old, made, reason=reason)
        return made

    def _number(self, old: cst.Subscript, value: Any, new: Any, at: At) -> Any:
        """Return a number of numpy as one of Python, where it may be such; else None.

        Of a dictionary it may be a word of numpy's: only what surely is numpy's is asked for.
        """
        if not is_number(value, at):
            return None
        if is_number(value, at, every=True):
            return _listed(new)
        if at.values.kind(old.value) != "tensor":
            return None
        if "choice" in code_of(value) and not at.options.plain:  # of words it gives a word
            return cst.parse_expression(wording(at, f"port.index({code_of(new)})"))
        return _int(new)


def _listed(node: Any) -> cst.Call:
    if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation)) and not node.lpar:
        node = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.Call(cst.Attribute(node, cst.Name("tolist")))


def _bounds(old: cst.Slice, new: Any, at: At) -> tuple[dict[str, Any], str]:
    """Return the bounds of a slice that are written as numbers of Python, and why."""
    found, why = {}, ""
    for name in ("lower", "upper", "step"):
        bound: Any = getattr(old, name)
        if bound is None:
            continue
        numpys = is_number(bound, at) or is_number_of_numpy(bound, at)
        reason = _AS_INT if numpys else _ONE if _is_one(bound, at) else ""
        if reason:
            found[name], why = _int(getattr(new, name)), reason
    return found, why


def _int(node: Any) -> cst.Call:
    return cst.Call(cst.Name("int"), [cst.Arg(node)])


def _is_one(node: Any, at: At) -> bool:
    """Return whether a bound surely is drawn as a tensor of one number: ``randint(0, n, (1,))``."""
    if isinstance(node, cst.BinaryOperation):
        return _is_one(node.left, at) or _is_one(node.right, at)
    return any(
        isinstance(one, cst.Call)
        and at.names.called(one) == "torch.randint"
        and any(code_of(arg.value) in ("(1,)", "[1]", "(1, )") for arg in one.args)
        for one in at.names.origins(node)
    )


def is_number(node: Any, at: At, depth: int = _DEPTH, every: bool = False) -> bool:
    """Return whether an expression may be one number of numpy's, or with ``every`` surely is."""
    if depth == 0:
        return False
    if isinstance(node, (cst.Name, cst.Attribute)):
        loops: list[Any] = [b.node for b in at.names.held(node) if b.kind in ("for", "other")]
        counted = [isinstance(x, (cst.For, cst.CompFor)) and _gives(x, node, at) for x in loops]
        origins = [one for one in at.names.origins(node) if one is not node]
        found = counted + [is_number(one, at, depth - 1, every) for one in origins]
        if every:
            return (
                bool(found) and all(found) and len(loops) + len(origins) >= len(at.names.held(node))
            )
        return any(found)
    if isinstance(node, cst.BinaryOperation):
        sides = [is_number(side, at, depth - 1, every) for side in (node.left, node.right)]
        return any(sides)  # a number of Python beside it makes one of numpy's
    if isinstance(node, cst.UnaryOperation):
        return is_number(node.expression, at, depth - 1, every)
    if isinstance(node, cst.Subscript):
        index: Any = node.slice[0].slice
        one = len(node.slice) == 1 and isinstance(index, cst.Index)
        return one and not is_array(index.value, at) and is_array(node.value, at)
    return isinstance(node, cst.Call) and _counts(node, at, every)


def _draws(node: cst.Call, last: str, every: bool, at: At) -> bool:
    """Return whether a drawn number is numpy's: of whole numbers they are Python's own.

    numpy/random/mtrand.pyx (1.26): ``randint`` of the default dtype, and ``choice`` of a number,
    return an int; ``choice`` of a sequence returns what it holds.
    """
    if last == "random.randint":
        return any(arg.keyword is not None and arg.keyword.value == "dtype" for arg in node.args)
    return not every or (bool(node.args) and is_array(node.args[0].value, at))


def _counts(node: cst.Call, at: At, every: bool) -> bool:
    """Return whether a call gives one number of numpy's: it leaves no axis."""
    if any(arg.keyword is not None and arg.keyword.value == "axis" for arg in node.args):
        return False
    module, _, last = (at.names.called(node) or "").partition(".")
    if module == "numpy":
        alone = last not in _OF_EACH or not is_array(node.args[0].value, at) if node.args else False
        named = any(arg.keyword is not None and arg.keyword.value == "size" for arg in node.args)
        drawn = not named and len(node.args) < _SIZED.get(last, 0) and _draws(node, last, every, at)
        return drawn or (last in _NUMBERS and len(node.args) == 1 and alone)
    if module or not isinstance(node.func, cst.Attribute) or node.args:
        return False
    return node.func.attr.value in _OF_ARRAYS and is_array(node.func.value, at)


def _gives(loop: Any, name: Any, at: At) -> bool:
    """Return whether a loop takes numbers out of an array of numpy for ``name``."""
    iterated, target = loop.iter, loop.target
    while isinstance(iterated, cst.Call) and iterated.args:
        word, place = code_of(iterated.func), 0
        if word in ("enumerate", "zip"):
            if not isinstance(target, cst.Tuple):
                return False
            place = _place(target, name)
            if place == -1:
                return False
            target = target.elements[place].value
            place -= word == "enumerate"  # what is counted is its only argument
        elif word not in _LISTS:
            break
        if not 0 <= place < len(iterated.args):
            return False
        iterated = iterated.args[place].value
    return code_of(target) == code_of(name) and is_array(iterated, at)


def _place(target: cst.Tuple, name: Any) -> int:
    """Return which part of a loop's target a name is, or is in; -1 if it is none."""
    parts = [code_of(element.value) for element in target.elements]
    own = re.compile(rf"(?<![\w.]){re.escape(code_of(name))}(?!\w)")
    return next((place for place, part in enumerate(parts) if own.search(part)), -1)


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


_NAMED_MASK = re.compile(r"mask|valid|(pos|neg|fg|bg)_?inds?$|^(is|has)_|^keep", re.I)
_FOUND = frozenset({"argwhere", "nonzero", "where"})


def _are_found(node: Any, at: At) -> bool:
    """Return whether these are places that are looked for: ``torch.where(mask)[0]``, maybe none."""
    if isinstance(node, cst.Subscript):
        return _are_found(node.value, at)
    if not isinstance(node, cst.Call) or (at.names.called(node) or "torch").startswith("numpy"):
        return False
    last = code_of(node.func).rpartition(".")[2]
    if last in _FOUND:
        return last == "nonzero" or len(node.args) == 1
    return last in ("flatten", "squeeze", "view") and _are_found(
        getattr(node.func, "value", None), at
    )


def _may_be_mask(node: Any, held: Any, at: At) -> bool:
    """Return whether an index may be truths of a tensor: by what it is, or by its name."""
    if _is_mask(node, at):
        return True
    if is_array(held, at) or at.values.kind(held) == "neutral":
        return False
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.BitInvert)
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, (cst.BitAnd, cst.BitOr))
    if isinstance(node, cst.Comparison):
        return not isinstance(node.comparisons[0].operator, (cst.In, cst.NotIn, cst.Is, cst.IsNot))
    if any(_are_found(one, at) for one in [node, *at.names.origins(node)]):
        return True
    if isinstance(node, (cst.Name, cst.Attribute)):
        return bool(_NAMED_MASK.search(code_of(node).rpartition(".")[2]))
    return isinstance(node, cst.Call) and code_of(node).endswith(".bool()")


def _is_beside(node: cst.Subscript, mask: cst.SubscriptElement) -> bool:
    """Return whether other places stand beside a mask, not only slices."""
    others = [one.slice for one in node.slice if one is not mask]
    return any(
        isinstance(one, cst.Index)
        and not isinstance(one.value, (cst.Ellipsis, cst.Integer))
        and code_of(one.value) != "None"
        for one in others
    )


_REDUCED = {"any": "port.any_true", "mean": "port.average", "sum": "port.total"}


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
    if isinstance(node, cst.Comparison):
        return _is_masked(node.left, at, depth)
    if isinstance(node, cst.Subscript) and len(node.slice) == 1:
        index = node.slice[0].slice
        return isinstance(index, cst.Index) and _may_be_mask(index.value, node.value, at)
    if not isinstance(node, cst.Call):
        return False
    module, _, last = (at.names.called(node) or "").rpartition(".")
    if module == "torch" and last in _EACH and node.args:
        return _is_masked(node.args[0].value, at, depth)
    if module == "torch.nn.functional":
        return any(_is_masked(arg.value, at, depth) for arg in node.args)
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
        isinstance(one, cst.Call) and at.names.called(one) in _EACH_AXIS and len(one.args) == 1
        for one in calls
    )


def _may_be_array(node: Any, at: At) -> bool:
    """Return whether a name is an array of numpy on some way to it."""
    origins = at.names.origins(node) if isinstance(node, cst.Name) else ()
    return any(one is not node and is_array(one, at) for one in origins)


def is_array(node: Any, at: At, depth: int = _DEPTH) -> bool:
    """Return whether an expression surely is an array of numpy."""
    if depth == 0:
        return False
    if isinstance(node, (cst.Name, cst.Attribute)):
        origins = list(at.names.origins(node))
        return (
            bool(origins)
            and _is_followed(node, at)
            and all(one is not node and is_array(one, at, depth - 1) for one in origins)
        )
    if isinstance(node, cst.BinaryOperation):
        return is_array(node.left, at, depth - 1) or is_array(node.right, at, depth - 1)
    if isinstance(node, cst.Subscript) and at.names.qualified(node.value) in _ROWS:
        return True
    if isinstance(node, cst.Subscript):
        # A part, or a number of numpy's.
        return _are_places(node.value, at) or is_array(node.value, at, depth - 1)
    if not isinstance(node, cst.Call):
        return False
    module, _, last = (at.names.called(node) or "").partition(".")
    if module == "numpy":
        named = any(arg.keyword is not None and arg.keyword.value == "size" for arg in node.args)
        return last in _ARRAYS or (last in _SIZED and (named or len(node.args) >= _SIZED[last]))
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "numpy":
        return not node.args  # of a tensor: an array, or a number of numpy's
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "astype":
        return True  # torch's tensors have none
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in _SAME:
        return is_array(node.func.value, at, depth - 1)
    return False
