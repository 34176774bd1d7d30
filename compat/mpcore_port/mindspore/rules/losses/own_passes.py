"""Functions of a script that run a backward pass of their own: attacks, inner loops.

A loss that is made of what they return may not run them once more while it is differentiated:
their gradients would be added behind ``zero_grad``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.rules.place import is_module
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["called", "gives_values", "own_passes", "trains"]

_DEPTH = 8
_VALUES = frozenset({"detach", "item", "numpy", "tolist"})
_SAME = frozenset({"clamp", "clone", "cpu", "cuda", "sign", "to", "view", "squeeze", "unsqueeze"})
_FREE = frozenset("clamp max min sign abs sum mean cat stack where".split())  # noqa: SIM905
_MADE = ("empty", "full", "ones", "rand", "tensor", "zeros")
_VARIABLE = "torch.autograd.Variable"


def own_passes(node: cst.CSTNode, at: At) -> list[cst.FunctionDef]:
    """Return the functions with a backward pass of their own that ``node`` calls by name."""
    training = at.once(_training)
    return [
        function
        for call in calls_in(node)
        for function in called(call, at)
        if id(function) in training
    ]


def trains(function: cst.FunctionDef, at: At) -> bool:
    """Return whether a function runs a backward pass of its own, or calls one that does."""
    return id(function) in at.once(_training)


def called(call: cst.Call, at: At) -> list[cst.FunctionDef]:
    """Return the functions of the file that a name, or a method of ``self``, stands for."""
    func = call.func
    if isinstance(func, cst.Name):
        found = at.names.scope(func).find(func.value)
        return [one.node for one in found if isinstance(one.node, cst.FunctionDef)]
    if not isinstance(func, cst.Attribute) or code_of(func.value) != "self":
        return []
    owner = at.names.enclosing(call, cst.ClassDef)
    named = at.names.functions.get(func.attr.value, [])
    return [one for one in named if at.names.owner(one) is owner]


def _training(at: At) -> set[int]:
    """Return the functions that run a backward pass, or call one that does, by their ids."""
    found: set[int] = set()
    waiting: list[cst.Call] = [c for c in at.names.callers("backward") if not at.names.called(c)]
    while waiting:
        function = at.names.enclosing(waiting.pop(), cst.FunctionDef)
        if function is not None and id(function) not in found:
            found.add(id(function))
            callers = at.names.callers(function.name.value)
            waiting += [c for c in callers if any(one is function for one in called(c, at))]
    return found


def gives_values(function: cst.FunctionDef, at: At) -> bool:
    """Return whether all that a function returns surely has no gradients."""
    return all(_is_value(value, at) for value in at.names.returns(function))


def _is_value(node: Any, at: At, depth: int = _DEPTH, asked: frozenset[str] = frozenset()) -> bool:
    if depth == 0:
        return False

    def each(*parts: Any) -> bool:
        return all(_is_value(part, at, depth - 1, asked) for part in parts)

    if isinstance(node, (cst.BaseNumber, cst.BaseString)):
        return True
    if isinstance(node, cst.Tuple):
        return each(*(one.value for one in node.elements))
    if isinstance(node, cst.BinaryOperation):
        return each(node.left, node.right)
    if isinstance(node, cst.UnaryOperation):
        return each(node.expression)
    if isinstance(node, cst.Attribute):
        return node.attr.value == "data"
    if isinstance(node, cst.Call):
        name = at.names.called(node) or ""
        module, _, last = name.rpartition(".")
        if name == _VARIABLE or (module == "torch" and last.startswith(_MADE)):
            return True
        if module == "torch" and last in _FREE:
            return each(*(arg.value for arg in node.args if arg.keyword is None))
        if name or not isinstance(node.func, cst.Attribute):
            return False
        method = node.func.attr.value
        return method in _VALUES or (method in _SAME and each(node.func.value))
    if not isinstance(node, cst.Name):
        return False
    if node.value in asked or node.value in ("True", "False", "None"):
        return True  # what it is given otherwise decides
    asked |= {node.value}
    found = at.names.scope(node).find(node.value)
    for one in found:
        if one.kind == "param":
            if not all(_is_data(value, at) for value in at.names.passed(one)):
                return False
        elif one.kind != "value" or not each(one.value):
            return False
    return bool(found)


def _is_data(node: Any, at: At) -> bool:
    """Return whether an argument surely is no network's output: of a loop, or made of nothing."""
    origins = at.names.origins(node)
    calls = [one for one in origins if isinstance(one, cst.Call)]
    return not any(is_module(at, call.func) for call in calls)
