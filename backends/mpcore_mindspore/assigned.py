"""Which Parameters a forward pass assigns, trainable or not, read from the source of its Cells.

MindSpore tells nobody that a Parameter was assigned, and a copy of every weight at every step is
too dear. So the methods of Cells that are not MindSpore's own are read once. Whose target cannot
be told (a loop variable, an argument) counts for all Parameters of its Cell: one copy too many is
better than one too few. What is assigned out of sight (in a loss function, in a compiled library)
is for ``restore_on_skip``.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from typing import TYPE_CHECKING, Any

from mindspore import Parameter, Tensor, nn, ops

from mpcore_mindspore.layers import is_native

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["assigned"]

_DEPTH = 4  # helpers that call helpers
_FUNCTIONS = ("assign", "assign_add", "assign_sub")
_PRIMITIVES = ("Assign", "AssignAdd", "AssignSub")
_SCATTERS = ("scatter_", "Scatter")  # scatter_update, ScatterNdAdd, ...
_FRESH = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant)  # no Parameter comes of it


class _Unknown:
    """Stands for an object that cannot be told."""


_UNKNOWN = _Unknown()


def assigned(net: nn.Cell) -> list[Any]:
    """Return the Parameters of ``net`` that a forward pass may assign; each once."""
    found: dict[int, Any] = {}
    for _, cell in net.cells_and_names():
        for function in _forwards(cell):
            for param in _targets(function, (cell,), cell, 0):
                found[id(param)] = param
    own = {id(param) for param in net.get_parameters()}
    return [param for key, param in found.items() if key in own]


def _forwards(cell: nn.Cell) -> Iterator[types.FunctionType]:
    """Yield what ``construct`` is, and was in each class that is not MindSpore's."""
    own = cell.__dict__.get("construct")
    members: list[Any] = [own.__func__] if isinstance(own, types.MethodType) else []
    members += [vars(cls).get("construct") for cls in type(cell).__mro__ if not is_native(cls)]
    for member in members:
        plain = inspect.unwrap(member) if callable(member) else None
        if isinstance(plain, types.FunctionType):
            yield plain


def _targets(
    function: types.FunctionType, given: Sequence[Any], cell: nn.Cell, depth: int
) -> Iterator[Any]:
    """Yield the Parameters that one function assigns.

    Args:
        function: a method, or a function that a method calls.
        given: live objects that are its first arguments; the others are Tensors of this pass.
        cell: all of its Parameters are meant where one cannot be told.
        depth: of calls so far.
    """
    try:
        nodes = _nodes(function.__code__)
    except (OSError, TypeError, SyntaxError):
        return  # no file: MindSpore's compiler could not read it either
    scope = _Scope(function, given, nodes)
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from _stored(target, scope)
        elif isinstance(node, ast.Call):
            yield from _called(node, scope, cell, depth)


@functools.lru_cache(maxsize=512)  # each layer of a model, and each model, has the same again
def _nodes(code: types.CodeType) -> tuple[ast.AST, ...]:
    """Return what the source of a function is made of."""
    return tuple(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(code)))))


class _Scope:
    """What the names in one function stand for: live objects, None for what the pass makes."""

    def __init__(
        self, function: types.FunctionType, given: Sequence[Any], nodes: Sequence[ast.AST]
    ) -> None:
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        self._known: dict[str, Any] = dict.fromkeys(code.co_varnames)
        self._known |= dict(zip(names, given, strict=False))
        outer = inspect.getclosurevars(function)
        self._outer = {**outer.builtins, **outer.globals, **outer.nonlocals}
        for node in nodes:
            if isinstance(node, ast.For | ast.comprehension):
                self._take(node.target, _UNKNOWN)
            elif isinstance(node, ast.Assign) and not isinstance(node.value, _FRESH):
                self._take(node.targets[0], self.value(node.value))

    def _take(self, target: ast.AST, value: Any) -> None:
        """Let a local name stand for ``value``; what has two meanings is not known."""
        if isinstance(target, ast.Tuple | ast.List):
            for item in target.elts:
                self._take(item, _UNKNOWN)
        elif isinstance(target, ast.Name):
            before = self._known.get(target.id)
            self._known[target.id] = value if before is None or before is value else _UNKNOWN

    def value(self, node: ast.AST) -> Any:
        """Return the live object that an expression stands for; None, or _UNKNOWN."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id, self._outer.get(node.id))
        if isinstance(node, ast.Attribute):
            holder = self.value(node.value)
            return holder if _neither(holder) else getattr(holder, node.attr, None)
        if isinstance(node, ast.Subscript):
            holder = self.value(node.value)
            if _neither(holder) or isinstance(holder, Parameter):
                return holder
            if isinstance(node.slice, ast.Constant):
                try:
                    return holder[node.slice.value]
                except (KeyError, IndexError, TypeError):
                    return _UNKNOWN
        return None if isinstance(node, _FRESH) else _UNKNOWN


def _neither(holder: object) -> bool:
    return holder is None or holder is _UNKNOWN


def _stored(target: ast.AST, scope: _Scope) -> Iterator[Any]:
    """Yield the Parameter of ``self.p = ...``, ``self.p[i] = ...``."""
    if isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _stored(item, scope)
    while isinstance(target, ast.Subscript | ast.Starred):
        target = target.value
        found = scope.value(target)
        if isinstance(found, Parameter):
            yield found
    if isinstance(target, ast.Attribute):
        found = scope.value(target)
        if isinstance(found, Parameter):
            yield found


def _called(node: ast.Call, scope: _Scope, cell: nn.Cell, depth: int) -> Iterator[Any]:
    """Yield the Parameters that a call assigns."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if isinstance(node.func, ast.Name):
        name = node.func.id
    function = scope.value(node.func)
    if _in_place(name) and isinstance(node.func, ast.Attribute):
        yield from _meant(scope.value(node.func.value), cell)
    elif _assigns(name, function, node.func):
        given = node.args[:1] or [word.value for word in node.keywords[:1]]
        for item in given:
            yield from _meant(scope.value(item), cell)
    elif isinstance(function, types.FunctionType | types.MethodType) and depth < _DEPTH:
        plain: Any = inspect.unwrap(function)
        given = [scope.value(item) for item in node.args]
        given += [scope.value(word.value) for word in node.keywords]  # close enough: in this order
        if isinstance(plain, types.MethodType):
            plain, given = plain.__func__, [plain.__self__, *given]
        if isinstance(plain, types.FunctionType) and not is_native(plain):
            yield from _targets(plain, given, cell, depth + 1)


def _in_place(name: str) -> bool:
    """Return whether a method of this name changes its Tensor: ``copy_``, ``set_data``."""
    return name == "set_data" or (name.endswith("_") and not name.startswith("_"))


def _assigns(name: str, function: object, node: ast.AST) -> bool:
    if isinstance(function, ops.Primitive):
        name = function.name
    elif isinstance(node, ast.Call):  # ops.Assign()(param, value)
        inner = node.func
        name = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")
    return name in (*_FUNCTIONS, *_PRIMITIVES) or name.startswith(_SCATTERS)


def _meant(target: object, cell: nn.Cell) -> Iterable[Any]:
    if isinstance(target, Parameter):
        return [target]
    # A Tensor that the forward pass has made itself is nobody's state.
    if target is None or isinstance(target, Tensor):
        return []
    return list(cell.get_parameters())
