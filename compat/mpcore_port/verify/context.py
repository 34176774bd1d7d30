"""Statements that are no part of a step, and decide how its loop is ported."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mpcore_port.verify.module import bound_names, target_names

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mpcore_port.verify.module import Module

__all__ = ["CALLED", "NEVER", "behind", "context"]

CALLED = "_mpcore_called = True"
"""What stands in front of a call that a script has not: its lines are not the script's."""

NEVER = "_mpcore_never"
"""What a statement is put behind that stays to be read by the rules, and does not run."""

NONE = "_mpcore_none"
"""What a loop goes over that stays to be read by the rules, and does not run."""

_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)
_BLOCKS = (ast.FunctionDef, ast.For, ast.While, ast.If, ast.With)


def context(
    module: Module, kept: Collection[int], lines: Sequence[str], loop: ast.stmt
) -> dict[int, str]:
    """Return, by number, lines that name an optimizer, a scaler or what hangs on them.

    Where a scale is saved or a schedule moves an optimizer, a port writes another loop: its step
    alone has to be ported in sight of them. So it is with what is read behind the loop.

    Args:
        module: the script.
        kept: numbers of the lines that the step has.
        lines: the lines of the script, with what was replaced.
        loop: the training loop.
    """
    watched, made = _watched(module), set(bound_names(loop))
    found: dict[int, str] = {}
    for node in ast.walk(module.tree):
        if not isinstance(node, _SIMPLE) or not _stands_alone(module, node, lines):
            continue
        span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if set(span) & set(kept) or not _is_in_sight(module, node, kept):
            continue
        is_behind = node.lineno > (loop.end_lineno or loop.lineno)
        if (watched | made if is_behind else watched) & set(_names(node)):
            first = lines[span[0] - 1]
            at = len(first) - len(first.lstrip())
            found[span[0]] = f"{first[:at]}if {NEVER}: {first[at:]}"
            found |= {number: lines[number - 1] for number in span[1:]}
    return found


def behind(
    module: Module, kept: Collection[int], lines: Sequence[str], loop: ast.stmt
) -> dict[int, str]:
    """Return, by number, the lines of loops and blocks behind the training loop, not to be run.

    They read what the loop has bound, or bind it anew: a loop that evaluates in the same function.
    """
    made = set(bound_names(loop))
    found: dict[int, str] = {}
    for node in ast.walk(module.tree):
        if not isinstance(node, (ast.For, ast.If)) or node.orelse:
            continue
        head = node.iter if isinstance(node, ast.For) else node.test
        span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        ahead = node.lineno <= (loop.end_lineno or loop.lineno)
        if ahead or set(span) & set(kept) or head.end_lineno != node.lineno:
            continue
        if not _is_beside(module, node, loop) or not made & set(_names(node)):
            continue
        text = lines[node.lineno - 1].encode()
        word = NONE if isinstance(node, ast.For) else NEVER
        parts = text[: head.col_offset], word.encode(), text[head.end_col_offset :]
        found[node.lineno] = b"".join(parts).decode()
        found |= {number: lines[number - 1] for number in span[1:]}
    return found


def _is_beside(module: Module, node: ast.AST, loop: ast.AST) -> bool:
    """Return whether a statement stands in a block around a loop, in the same function."""
    at = module.parents.get(loop)
    while at is not None and not isinstance(at, (ast.ClassDef, ast.Module)):
        if module.parents.get(node) is at and node in getattr(at, "body", ()):
            return True
        if isinstance(at, ast.FunctionDef):
            break
        at = module.parents.get(at)
    return False


def _watched(module: Module) -> set[str]:
    """Return the names of optimizers and scalers, and of what is made of them."""
    found: set[str] = set()
    before = -1
    while before != len(found):
        before = len(found)
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            made = module.qualified(node.value.func)
            given = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
            if _makes(made) or (given & found and made.startswith("torch.optim.")):
                found |= {name for target in node.targets for name in target_names(target)}
    return found


def _makes(name: str) -> bool:
    return name.endswith(".GradScaler") or name.startswith("torch.optim.")


def _names(node: ast.AST) -> list[str]:
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]


def _stands_alone(module: Module, node: ast.stmt, lines: Sequence[str]) -> bool:
    """Return whether a statement has its lines for itself."""
    first, last = lines[node.lineno - 1], lines[(node.end_lineno or node.lineno) - 1]
    begins = not first.encode()[: node.col_offset].strip()
    tail = last.encode()[node.end_col_offset or 0 :].decode(errors="replace").strip()
    return begins and (not tail or tail.startswith("#"))


def _is_in_sight(module: Module, node: ast.AST, kept: Collection[int]) -> bool:
    """Return whether the block around a statement is one that the step has."""
    above = module.parents.get(node)
    if isinstance(above, ast.Module):
        return True
    if not isinstance(above, _BLOCKS) or node not in above.body:
        return False
    return above.lineno in kept and any(one.lineno in kept for one in above.body)
