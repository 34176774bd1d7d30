"""Where a training loop takes batches by itself: with ``next``, or from a replay buffer."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from mpcore_port.verify.module import Module, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BATCHES", "is_next", "nexts"]

BATCHES = re.compile(r"(get|next|sample|fetch|make|load)_?(\w+_)?(mini_?)?batch(es)?", re.I)
"""Names of functions that give batches."""

_MEMORY = re.compile(r"(\w+_)?(replay|buffer|memory|experience|rb)(_\w+)?", re.I)
_MODEL = {"parameters", "named_parameters", "buffers", "modules", "values", "keys", "items"}


def nexts(module: Module, loop: ast.AST) -> list[tuple[ast.Call, ast.expr]]:
    """Return the calls in a loop, or a function, that take a batch, and what each is bound to."""
    is_function = isinstance(loop, (ast.FunctionDef, ast.AsyncFunctionDef))
    blocks: list[ast.AST] = [*loop.body] if is_function else [loop]  # type: ignore[attr-defined]
    return [
        (node, _target(module, node))
        for block in blocks
        for scope in _scopes(module, block, 2)
        for node in walk(scope)
        if isinstance(node, ast.Call) and (_takes(node) or _remembers(module, node))
    ]


def _scopes(module: Module, scope: ast.AST, depth: int) -> Iterator[ast.AST]:
    """Yield a block, and the statements of the script's functions that it calls."""
    yield scope
    for node in walk(scope):
        function = module.called(node) if isinstance(node, ast.Call) and depth else None
        for statement in function.body if function is not None else ():
            yield from _scopes(module, statement, depth - 1)


def is_next(call: ast.Call) -> bool:
    """Return whether a call is ``next(iterator)``."""
    return isinstance(call.func, ast.Name) and call.func.id == "next" and bool(call.args)


def _takes(call: ast.Call) -> bool:
    func = call.func
    if isinstance(func, ast.Attribute):
        return func.attr in ("next", "__next__") and not call.args
    if not is_next(call):
        return False
    given = call.args[0]
    last = ast.unparse(given.func).rpartition(".")[2] if isinstance(given, ast.Call) else ""
    return isinstance(given, (ast.Name, ast.Attribute, ast.Subscript)) or (
        last in ("iter", "cycle") and last not in _MODEL
    )


def _remembers(module: Module, call: ast.Call) -> bool:
    """Return whether ``state, action = replay_buffer.sample(n)`` takes what others have stored."""
    func = call.func
    if not isinstance(func, ast.Attribute):
        return False
    above = module.parents.get(call)
    parts = isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Tuple)
    if parts and BATCHES.fullmatch(func.attr) and not module.qualified(func):
        return module.called(call) is None  # of a data set that another file has
    if not func.attr.startswith("sample"):
        return False
    held = ast.unparse(func.value).rpartition(".")[2]
    return parts and _MEMORY.fullmatch(held) is not None and module.called(call) is None


def _target(module: Module, call: ast.Call) -> ast.expr:
    """Return what a batch is bound to; through ``.to(device)`` too."""
    above = module.parents[call]
    while isinstance(above, (ast.Attribute, ast.Call)) and not _is_given(above, call):
        above = module.parents[above]
    if isinstance(above, ast.Assign):
        return above.targets[0]
    return ast.copy_location(ast.Name("batch", ast.Store()), call)


def _is_given(node: ast.AST, call: ast.Call) -> bool:
    return isinstance(node, ast.Call) and call in node.args
