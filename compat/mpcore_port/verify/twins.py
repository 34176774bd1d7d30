"""Lines of two branches that say the same: what is left out of one is left out of the other."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["with_twins"]


def with_twins(text: str, absent: Collection[int]) -> set[int]:
    """Return lines of a script, and those that say the same in the other branch of an ``if``.

    A step whose branches differ in precision alone is ported as one; so is what is left of it.
    """
    found = set(absent)
    for node in ast.walk(ast.parse(text)) if absent else ():
        if isinstance(node, ast.If) and node.orelse:
            sides = [list(_simple(part)) for part in (node.body, node.orelse)]
            for one, other in (sides, sides[::-1]):
                said = {ast.unparse(part) for part in one if part.lineno in absent}
                found |= {part.lineno for part in other if ast.unparse(part) in said}
    return found


def _simple(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for part in (part for one in body for part in ast.walk(one)):
        if isinstance(part, ast.stmt) and not hasattr(part, "body"):
            yield part
