"""Arguments of calls that rules write: by keyword, without spaces around the sign."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from mpcore_port.scopes import code_of, expression

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["by_keyword", "pinned"]


def by_keyword(name: str, value: cst.BaseExpression | str) -> cst.Arg:
    """Return ``name=value``, of a node or of code."""
    node = expression(value) if isinstance(value, str) else value
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(node, keyword=cst.Name(name), equal=tight)


def pinned(args: Sequence[cst.Arg], name: str, value: str) -> list[cst.Arg]:
    """Return arguments with one more; one that ``**settings`` may have as well is theirs first."""
    place = next((i for i, arg in enumerate(args) if arg.star == "**"), -1)
    if place < 0:
        return [*args, by_keyword(name, value)]
    held = f'{{"{name}": {value}, **{code_of(args[place].value)}}}'
    made = args[place].with_changes(value=expression(held))
    return [*args[:place], made, *args[place + 1 :]]
