"""The parts of a node of libcst in the order of the code, and walks that only look.

libcst's own ``children`` and ``visit`` make a copy of every node that they come to.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = ["WHITE", "Walker", "below", "calls_in", "children_of", "paths_to"]

WHITE = frozenset(
    {
        cst.SimpleWhitespace,
        cst.ParenthesizedWhitespace,
        cst.TrailingWhitespace,
        cst.EmptyLine,
        cst.Comment,
        cst.Newline,
    }
)


class _Fields(cst.CSTTransformer):
    """Notes the fields that a node hands its visitor, children or not."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def on_visit(self, _: cst.CSTNode) -> bool:
        return False

    def on_leave(self, _: Any, updated_node: Any) -> Any:
        return updated_node

    def on_visit_attribute(self, _: cst.CSTNode, attribute: str) -> None:
        self.names.append(attribute)

    def on_leave_attribute(self, original_node: cst.CSTNode, attribute: str) -> None:
        pass


_BY_HAND = {"FormattedStringExpression", "TemplatedStringExpression"}  # a field they may leave out
_PARTS: dict[type[cst.CSTNode], Callable[[cst.CSTNode], Sequence[Any]]] = {}


def _parts(kind: type[cst.CSTNode], node: cst.CSTNode) -> Callable[[cst.CSTNode], Sequence[Any]]:
    """Return the function that gives the values of a type's fields."""
    if kind.__name__ in _BY_HAND:
        return lambda node: node.children
    fields = _Fields()
    node._visit_and_replace_children(fields)
    names = fields.names
    if len(names) > 1:
        return operator.attrgetter(*names)
    return (lambda node: (getattr(node, names[0]),)) if names else lambda _: ()


def children_of(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return what ``node.children`` does."""
    kind = type(node)
    if kind not in _PARTS:
        _PARTS[kind] = _parts(kind, node)
    found: list[cst.CSTNode] = []
    for value in _PARTS[kind](node):
        if type(value) is tuple or type(value) is list:
            found += value
        elif value is not None and value is not cst.MaybeSentinel.DEFAULT:
            found.append(value)
    return found


def below(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Give ``node`` and all below it, in the order of the code."""
    yield node
    for child in children_of(node):
        yield from below(child)


class Walker:
    """A walk over a node and all below it, white space and comments left out; for subclasses."""

    def walk(self, node: cst.CSTNode) -> None:
        """Come to ``node`` and, where ``on_visit`` says so, to its parts."""
        if self.on_visit(node):
            for child in children_of(node):
                if type(child) not in WHITE:
                    self.walk(child)
        self.on_leave(node)

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Return whether to go on below ``node``."""
        raise NotImplementedError

    def on_leave(self, node: cst.CSTNode) -> None:
        """Look at ``node`` after all that is below it."""


class _Calls(Walker):
    def __init__(self) -> None:
        self.calls: list[cst.Call] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Call):
            self.calls.append(node)
        return True


def calls_in(node: cst.CSTNode) -> list[cst.Call]:
    """Return the calls in ``node``, outer ones first."""
    found = _Calls()
    found.walk(node)
    return found.calls


def paths_to(nodes: Iterable[cst.CSTNode], parents: Mapping[cst.CSTNode, cst.CSTNode]) -> set[int]:
    """Return the ids of some nodes and of all that stand above one."""
    found: set[int] = set()
    for node in nodes:
        above: cst.CSTNode | None = node
        while above is not None and id(above) not in found:
            found.add(id(above))
            above = parents.get(above)
    return found
