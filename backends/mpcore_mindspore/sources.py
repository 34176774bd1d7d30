"""What is told of a loss function before it runs: whether it can be compiled, what it refers to."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
from functools import partial
from typing import TYPE_CHECKING, Any

from mindspore import Tensor, nn

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["check_reaches", "check_readable"]

_MANY = 20_000  # objects; beyond them nobody is refused
_PLAIN = (str, bytes, int, float, complex, bool, type(None), range, slice)
_OTHERS = ("mindspore", "numpy", *sys.stdlib_module_names)


def check_readable(losses: Iterable[Callable[..., Any]]) -> None:
    """Refuse a loss function that the graph compiler would fail on, forty lines later.

    Raises:
        BackendError: a lambda that does not stand alone, or a function without a file.
    """
    for loss_fn in losses:
        function = loss_fn.__func__ if isinstance(loss_fn, types.MethodType) else loss_fn
        if isinstance(function, types.FunctionType):
            why = _trouble(function)
            if why:
                code = function.__code__
                msg = (
                    f"`loss_fn` must be a function that the graph compiler can read, got {why} "
                    f"({code.co_filename}:{code.co_firstlineno}): write it with "
                    "`def loss_fn(...): return ...` in a file"
                )
                raise BackendError(msg)


def _trouble(function: types.FunctionType) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return "one whose source is in no file"
    if function.__name__ != "<lambda>":
        return ""
    try:
        first = ast.parse(source).body[0]
    except (SyntaxError, IndexError):  # a piece of a longer statement
        return "a lambda inside a call"
    alone = isinstance(first, ast.Assign | ast.AnnAssign) and isinstance(first.value, ast.Lambda)
    return "" if alone else "a lambda inside a call"


def check_reaches(losses: Iterable[Callable[..., Any]], net: nn.Cell) -> None:
    """Refuse a loss function that cannot run ``net``: its gradients would all be 0.

    Raises:
        BackendError: all that it refers to is known, and nothing of it is a part of ``net``.
    """
    parts = {id(cell) for _, cell in net.cells_and_names()}
    parts |= {id(param) for param in net.get_parameters()}
    for loss_fn in losses:
        if not _may_reach(loss_fn, parts):
            name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
            msg = (
                f"`loss_fn` must run the prepared {type(net).__name__}, got {name}, which refers "
                "to none of its Cells and Parameters: its gradients would be 0; is it another "
                "network's, or that of a copy?"
            )
            raise BackendError(msg)


def _may_reach(start: object, parts: set[int]) -> bool:
    waiting, seen = [start], dict[int, Any]()
    while waiting:
        thing = waiting.pop()
        if id(thing) in parts or len(seen) > _MANY:
            return True
        if id(thing) not in seen:
            seen[id(thing)] = thing  # kept: an id is free again with its object
            found = _referred(thing)
            if found is None:
                return True
            waiting += found
    return False


def _referred(thing: Any) -> list[Any] | None:
    """Return what an object refers to; None where that cannot be told."""
    if isinstance(thing, (*_PLAIN, Tensor)):
        return []
    if isinstance(thing, types.FunctionType):
        return list(_of_function(thing))
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, list | tuple | set | frozenset):
        return list(thing)
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, nn.Cell):
        return [*vars(thing).values(), type(thing)]
    if _is_others(thing):
        return []
    if isinstance(thing, type):
        return [*vars(thing).values(), *thing.__bases__]
    if isinstance(thing, types.ModuleType) or not hasattr(thing, "__dict__"):
        return None
    return [*vars(thing).values(), type(thing)]


def _is_others(thing: Any) -> bool:
    if isinstance(thing, types.ModuleType):
        home = thing.__name__
    else:
        home = getattr(thing if isinstance(thing, type) else type(thing), "__module__", "")
    return str(home).partition(".")[0] in _OTHERS


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
