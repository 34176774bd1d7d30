"""What star imports of modules that are not there give: the names that nothing binds."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING

from mpcore_port.verify.roles import flag_of, number_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpcore_port.verify.module import Module

__all__ = ["given_by_stars", "is_star"]

_ANY = {*dir(builtins), "__file__", "__name__", "__doc__"}
_NOTHING = -1.0


def is_star(node: ast.AST) -> bool:
    """Return whether an import brings all names of a module."""
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def given_by_stars(module: Module, absent: Sequence[ast.ImportFrom]) -> dict[str, dict[str, str]]:
    """Return what star imports of what is not there give: names and their code, by module.

    All is given by the first. Where another star import is there, nothing is known of what each
    gives.

    Args:
        module: the script.
        absent: its star imports of modules that are not there, in their order.
    """
    stars = [node for node in ast.walk(module.tree) if is_star(node)]
    if not absent or len(stars) > len(absent):
        return {}
    first = absent[0].module or ""
    names = sorted(_read(module) - set(_bound(module.tree)) - set(module.imports) - _ANY)
    given: dict[str, dict[str, str]] = {node.module or "": {} for node in absent}
    return given | {first: {name: _value(module, name, first) for name in names}}


def _read(module: Module) -> set[str]:
    names = (node for node in ast.walk(module.tree) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Load)}


def _bound(tree: ast.AST) -> Iterator[str]:
    """Yield all names that a script binds, in whatever scope."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            yield from node.names
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name


def _value(module: Module, name: str, source: str) -> str:
    """Return code for what a name is: a number or a flag by its name, else what is not there."""
    number = number_of(name, _NOTHING)
    if not _is_used_as_object(module, name):
        if flag_of(name):
            return "True"
        if number != _NOTHING:
            return repr(number)
    return f'_mpcore_missing("{source}.{name}")'


def _is_used_as_object(module: Module, name: str) -> bool:
    """Return whether a name is called, or asked for attributes or items."""
    return any(
        isinstance(node, ast.Name) and node.id == name and _holds(module.parents.get(node), node)
        for node in ast.walk(module.tree)
    )


def _holds(above: ast.AST | None, node: ast.AST) -> bool:
    if isinstance(above, (ast.Attribute, ast.Subscript)):
        return above.value is node
    return isinstance(above, ast.Call) and above.func is node
