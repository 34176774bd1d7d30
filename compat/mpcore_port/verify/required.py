"""Arguments that a script's command line must have, with values."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpcore_port.verify.module import Module

__all__ = ["required_arguments"]

_VALUES = {"int": "1", "float": "0.1", "bool": "1"}


def required_arguments(module: Module) -> tuple[str, ...]:
    """Return the command line that satisfies ``argparse``: positionals and required options."""
    found: list[str] = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument"):
            found += _argument(node)
    return tuple(found)


def _argument(node: ast.Call) -> list[str]:
    names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    given = {k.arg: k.value for k in node.keywords if k.arg}
    option = next((name for name in names if name.startswith("--")), names[0] if names else "")
    if option.startswith("-"):
        required = given.get("required")
        if not (isinstance(required, ast.Constant) and required.value is True):
            return []
    elif not option or _constant(given.get("nargs")) in ("?", "*"):
        return []
    count = _constant(given.get("nargs"))
    values = [_value(given)] * (count if isinstance(count, int) else 1)
    return [option, *values] if option.startswith("-") else values


def _value(given: dict[str, ast.expr]) -> str:
    choices = given.get("choices")
    if isinstance(choices, (ast.List, ast.Tuple)) and choices.elts:
        return str(_constant(choices.elts[0]))
    kind = given.get("type")
    return _VALUES.get(ast.unparse(kind) if kind is not None else "", "mpcore")


def _constant(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None
