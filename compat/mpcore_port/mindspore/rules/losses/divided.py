"""Losses that a block behind the one that makes them divides: ``if amp: loss /= steps``.

The gradients are those of the loss that the network made, divided as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.rules.losses.afar import Graded
from mpcore_port.mindspore.rules.losses.names_in import read
from mpcore_port.mindspore.rules.losses.networks_in import parameters_read
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore_port.rule import At

__all__ = ["Division", "division", "divisions"]

_WORDS: dict[type[Any], str] = {
    cst.Divide: "over",
    cst.DivideAssign: "over",
    cst.Multiply: "times",
    cst.MultiplyAssign: "times",
}
_COUNTS = ("len", "int", "float", "max", "min")


@dataclass(frozen=True)
class Division:
    """What a statement does to a loss.

    Attributes:
        node: the assignment.
        steps: what the port has for it, and by what it divides or multiplies, in their order.
    """

    node: cst.BaseSmallStatement
    steps: tuple[tuple[str, cst.BaseExpression], ...]

    def written(self, name: str, port: str) -> cst.Assign:
        """Return the statement of a port."""
        value: cst.BaseExpression = cst.Name(name)
        for word, number in self.steps:
            func = cst.Attribute(cst.Name(port), cst.Name(word))
            value = cst.Call(func, [cst.Arg(value), cst.Arg(number)])
        return cst.Assign([cst.AssignTarget(cst.Name(name))], value)


def divisions(lines: Sequence[Any], loss: cst.BaseExpression, at: At) -> list[Division] | None:
    """Return what statements do to a loss; None if one of them is no division by a number."""
    if not isinstance(loss, cst.Name):
        return None
    found = [_of_line(line, loss.value, at) for line in lines]
    return None if None in found else [one for one in found if one is not None]


def _of_line(line: Any, name: str, at: At) -> Division | None:
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    found = division(line.body[0], name)
    if found is None or not all(_is_number(number, name, at) for _, number in found.steps):
        return None
    return found


def division(small: Any, name: str) -> Division | None:
    """Return what ``loss /= n``, ``loss = loss / n`` or ``loss = n * loss`` does to ``name``."""
    if isinstance(small, cst.AugAssign):
        word = _WORDS.get(type(small.operator), "")
        own = code_of(small.target) == name
        return Division(small, ((word, small.value),)) if word and own else None
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return None
    if code_of(small.targets[0].target) != name:
        return None
    steps = _steps(small.value, name)
    return Division(small, steps) if steps else None


def _steps(value: cst.BaseExpression, name: str) -> tuple[tuple[str, cst.BaseExpression], ...]:
    """Return what ``(loss / n) * weight`` does to a loss, in its order; () if it is no such."""
    if not isinstance(value, cst.BinaryOperation):
        return ()
    word = _WORDS.get(type(value.operator), "")
    sides = [value.left, value.right]
    if word == "times" and name in read(value.right):
        sides.reverse()
    if not word or name not in read(sides[0]) or name in read(sides[1]):
        return ()
    last = (word, sides[1])
    if isinstance(sides[0], cst.Name):
        return (last,)
    before = _steps(sides[0], name)
    return (*before, last) if before else ()


def _is_number(node: cst.BaseExpression, name: str, at: At) -> bool:
    """Return whether no gradient goes through a factor: it holds no weights, nothing of them."""
    asked = read(node)
    if name in asked or asked & at.once(Graded).before(node) or parameters_read(node, at):
        return False
    return all(code_of(call.func) in _COUNTS for call in calls_in(node))
