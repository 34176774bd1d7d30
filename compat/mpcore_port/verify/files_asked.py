"""Questions for files and folders that a script's own preparation would have made.

``if os.path.isdir(path): last = scan(path)`` binds what is read behind it. What makes the folder is
not of the step, and without it the name would be unbound.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_port.verify.module import Module

__all__ = ["answered_yes"]

_ASKED = ("os.path.isdir", "os.path.exists", "os.path.isfile")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def answered_yes(module: Module) -> Iterator[ast.expr]:
    """Yield the questions without which a name that is read later would be bound nowhere."""
    for function in (one for one in ast.walk(module.tree) if isinstance(one, _FUNCTIONS)):
        nodes = list(ast.walk(function))
        asked = (one for one in nodes if isinstance(one, ast.If) and not one.orelse)
        for node in asked:
            if _asks(module, node.test) and _binds_alone(node, nodes):
                yield node.test


def _asks(module: Module, test: ast.expr) -> bool:
    return isinstance(test, ast.Call) and module.qualified(test.func) in _ASKED


def _binds_alone(block: ast.If, nodes: list[ast.AST]) -> bool:
    names = [one for one in nodes if isinstance(one, ast.Name)]
    inside = {id(one) for part in block.body for one in ast.walk(part)}
    stored = {one.id for one in names if isinstance(one.ctx, ast.Store) and id(one) in inside}
    others = {one.id for one in names if isinstance(one.ctx, ast.Store) and id(one) not in inside}
    listed = {one.arg for one in nodes if isinstance(one, ast.arg)}
    end = block.end_lineno or block.lineno
    read = {one.id for one in names if isinstance(one.ctx, ast.Load) and one.lineno > end}
    return bool((stored - others - listed) & read)
