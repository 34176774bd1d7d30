"""Whether what a call in a training loop gives is only reported, as an accuracy is."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

from mpcore_port.verify.module import is_backward, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_port.verify.module import Module

__all__ = ["is_only_reported"]

_MOVES = {"backward", "scale", "step", "unscale_", "zero_grad", "clip_grad_norm_"}
_KEEPS = {"append", "extend", "update", "add", "insert", "setdefault"}
_NEVER = sys.maxsize
_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Raise)


def is_only_reported(module: Module, call: ast.Call) -> bool:
    """Return whether nothing that trains hangs on what a call gives.

    What it is bound to is followed through the function around it: whatever is made of it must
    reach no backward pass, no step, and no branch that trains or leaves the loop.
    """
    statement = module.parents.get(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    home = module.enclosing(call, ast.FunctionDef, ast.AsyncFunctionDef) or module.tree
    names = set(_bound(statement.targets))
    if not names or any("." in name for name in names):  # others may read what an object holds
        return False
    nodes = [node for part in home.body for node in walk(part)]  # type: ignore[attr-defined]
    loop = module.enclosing(call, ast.For, ast.While)
    renewed = _renewed(module, loop) if loop is not None else {}
    before = -1
    while before != len(names):
        before = len(names)
        for node in nodes:
            made = set(_made_of(node, names))
            line = getattr(node, "lineno", 0)  # what `with` binds has no line of its own
            names |= {name for name in made if not renewed.get(name, _NEVER) < line}
    return not any("." in name for name in names) and not any(
        _trains(module, node, names) for node in nodes
    )


def _renewed(module: Module, loop: ast.AST) -> dict[str, int]:
    """Return the names that a loop makes anew before it trains by them, with the last such line.

    ``loss = mean_of_ranks(loss)`` behind the step is of no other step.
    """
    nodes = [node for node in ast.walk(loop) if isinstance(node, ast.expr | ast.stmt)]
    lines: dict[str, list[int]] = {}
    for node in nodes:
        if _moves(module, node):
            for part in ast.walk(node):
                if isinstance(part, ast.Name):
                    lines.setdefault(part.id, []).append(node.lineno)
    found: dict[str, int] = {}
    for node in nodes:
        if not isinstance(node, ast.Assign):
            continue
        for name in _bound(node.targets):
            trains = lines.get(name, [])
            if trains and node.lineno < min(trains) and not _reads(node.value, {name}):
                found[name] = max(trains)
    return found


def _made_of(node: ast.AST, names: set[str]) -> Iterator[str]:
    """Yield the names that a statement, or a call, puts something of such names into."""
    if isinstance(node, ast.Assign):
        if _reads(node.value, names):
            yield from _bound(node.targets)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
        if node.value is not None and _reads(node.value, names):
            yield from _bound([node.target])
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        if _reads(node.iter, names):
            yield from _bound([node.target])
    elif isinstance(node, ast.withitem):
        if node.optional_vars is not None and _reads(node.context_expr, names):
            yield from _bound([node.optional_vars])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        held = node.func.value
        given = any(_reads(one, names) for one in _given(node))
        if given and node.func.attr in _KEEPS and isinstance(held, ast.Name):
            yield held.id


def _trains(module: Module, node: ast.AST, names: set[str]) -> bool:
    """Return whether a node trains by something of such names, or asks them whether to."""
    if isinstance(node, (ast.If, ast.While)) and _reads(node.test, names):
        inside = [part for one in (*node.body, *node.orelse) for part in walk(one)]
        return any(isinstance(one, _LEAVES) or _moves(module, one) for one in inside)
    if isinstance(node, ast.IfExp) and _reads(node.test, names):
        return any(_moves(module, part) for part in walk(node))
    return _moves(module, node) and _reads(node, names)


def _moves(module: Module, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    last = ast.unparse(node.func).rpartition(".")[2]
    return last in _MOVES or is_backward(node) or module.called(node) in module.reached


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _reads(node: ast.AST, names: set[str]) -> bool:
    return any(
        isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and one.id in names
        for one in ast.walk(node)
    )


def _bound(targets: list[ast.expr]) -> Iterator[str]:
    """Yield what is bound, or has an item or attribute set; of an object's own with its point."""
    for target in targets:
        if isinstance(target, (ast.Tuple, ast.List)):
            yield from _bound(target.elts)
            continue
        one: ast.expr = target.value if isinstance(target, ast.Starred) else target
        while isinstance(one, ast.Subscript):
            one = one.value
        yield ast.unparse(one)
