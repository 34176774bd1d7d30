"""What decides whether a step has mixed precision: flags, settings, and what asks of a device."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from mpcore_port.verify.context import NEVER
from mpcore_port.verify.roles import SCALER
from mpcore_port.verify.without_forward import ALWAYS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_port.verify.module import Module

__all__ = ["asked_devices", "switches"]

_OF_MIXED = re.compile(r"(^|\.)(autocast|GradScaler)$")
_NAMES = re.compile(r"(autocast|GradScaler)\(")
_DEVICE = re.compile(r"(^|[._])(\w*device|dev)$", re.I)
_KIND = "cuda"


def asked_devices(module: Module) -> dict[ast.AST, str]:
    """Return the questions whether something is on the device, and what stands for each.

    ``device.type == "cuda"`` is no where the CPU stands in for the device.
    """
    found: dict[ast.AST, str] = {}
    for node in ast.walk(module.tree):
        if not (isinstance(node, ast.Compare) and len(node.ops) == 1):
            continue
        left, right = node.left, node.comparators[0]
        asks = isinstance(left, ast.Attribute) and left.attr == "type"
        is_kind = isinstance(right, ast.Constant) and right.value == _KIND
        if not (asks and is_kind and _DEVICE.search(ast.unparse(left.value))):  # type: ignore[attr-defined]
            continue
        if isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            found[node] = ALWAYS if isinstance(node.ops[0], ast.Eq) else NEVER
    return found


def switches(module: Module) -> dict[ast.AST, str]:
    """Return what decides whether a script has mixed precision, and what stands for it: yes.

    What ``enabled=`` of its regions and scalers is, and the questions in front of them.
    """
    found: dict[ast.AST, str] = {}
    texts: set[str] = set()
    for node in _deciding(module):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            texts.add(ast.unparse(node))
        else:
            found[node] = ALWAYS
    for part in ast.walk(module.tree):
        if isinstance(part, (ast.Name, ast.Attribute, ast.Subscript)):
            plain = isinstance(part.ctx, ast.Load) and not _is_used(module, part)
            if plain and ast.unparse(part) in texts:
                found[part] = ALWAYS
    return found


def _deciding(module: Module) -> Iterator[ast.expr]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and _OF_MIXED.search(ast.unparse(node.func)):
            words = [one.value for one in node.keywords if one.arg == "enabled"]
            first = node.args[:1] if module.qualified(node.func).endswith(".amp.autocast") else []
            for value in (*words, *first):
                if not isinstance(value, ast.Constant):
                    yield value
        elif isinstance(node, ast.IfExp) and _NAMES.search(ast.unparse(node.body)):
            yield node.test
        elif isinstance(node, ast.If) and not isinstance(node.test, ast.Constant):
            inside = any(_NAMES.search(ast.unparse(one)) for one in node.body)
            beside = any(_NAMES.search(ast.unparse(one)) for one in node.orelse)
            if inside and not beside and not _asks_for_scaler(node.test):
                yield node.test


def _asks_for_scaler(test: ast.expr) -> bool:
    """Return whether a question is for a scaler that was made or not: ``scaler is not None``."""
    held = (one for one in ast.walk(test) if isinstance(one, (ast.Name, ast.Attribute)))
    return any(map(_is_scaler, held))


def _is_scaler(node: ast.AST) -> bool:
    """Return whether it is a scaler that is asked for: where there is none, none can be used."""
    return re.fullmatch(SCALER, ast.unparse(node).rpartition(".")[2], re.I) is not None


def _is_used(module: Module, node: ast.AST) -> bool:
    """Return whether something is called, or asked for attributes or items: it is no flag."""
    above = module.parents.get(node)
    if isinstance(above, (ast.Attribute, ast.Subscript)):
        return above.value is node
    return isinstance(above, ast.Call) and above.func is node
