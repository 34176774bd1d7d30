"""What star imports of modules that are not there give: the names that nothing binds."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING

from mpcore_port.verify.module import bound_names
from mpcore_port.verify.roles import flag_of, number_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mpcore_port.verify.module import Module

__all__ = ["given_by_stars", "is_star"]

_ANY = {*dir(builtins), "__file__", "__name__", "__doc__"}
_NOTHING = -1.0


def is_star(node: ast.AST) -> bool:
    """Return whether an import brings all names of a module."""
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def given_by_stars(
    module: Module, absent: Sequence[ast.ImportFrom], folders: Sequence[Path] = ()
) -> dict[str, dict[str, str]]:
    """Return what star imports of what is not there give: names and their code, by module.

    All is given by the first. Where another star import is there, and its file does not lie beside
    the script, nothing is known of what each gives.

    Args:
        module: the script.
        absent: its star imports of modules that are not there, in their order.
        folders: where modules beside the script are.
    """
    stars = [node for node in ast.walk(module.tree) if is_star(node)]
    others = [_given_beside(node, folders) for node in stars if node not in absent]
    if not absent or None in others:
        return {}
    first = absent[0].module or ""
    known = {name for names in others for name in names or ()}
    names = sorted(_read(module) - set(_bound(module.tree)) - set(module.imports) - _ANY - known)
    given: dict[str, dict[str, str]] = {node.module or "": {} for node in absent}
    return given | {first: {name: _value(module, name, first) for name in names}}


def _given_beside(node: ast.AST, folders: Sequence[Path], depth: int = 3) -> set[str] | None:
    """Return the names that a star import of a file beside the script gives; None if unknown."""
    if not isinstance(node, ast.ImportFrom) or node.level or not node.module or not depth:
        return None
    for folder in folders:
        at = folder.joinpath(*node.module.split("."))
        path = at.with_suffix(".py") if at.with_suffix(".py").is_file() else at / "__init__.py"
        if not path.is_file():
            continue
        try:
            tree = ast.parse(path.read_text("utf-8", errors="replace"))
        except (SyntaxError, ValueError, RecursionError):
            return None
        inner = [_given_beside(one, folders, depth - 1) for one in ast.walk(tree) if is_star(one)]
        if None in inner:
            return None
        imported = {alias.asname or alias.name.partition(".")[0] for alias in _aliases(tree)}
        own = {name for statement in tree.body for name in bound_names(statement)}
        return {*own, *imported, *(name for names in inner for name in names or ())}
    return None


def _aliases(tree: ast.AST) -> list[ast.alias]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.alias)]


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
