"""Patterns of calls over neutral ops: ``P("conv2d") >> P("batch_norm") >> Opt("relu")``.

A chain matches where each call reads what the one before it made, and nobody else does; a
pattern never asks for a framework's class or function.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mpcore.errors import GraphError, PolicyError
from mpcore.numerics import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mpcore.graph.ir import Graph, Node

__all__ = ["Chain", "Match", "Opt", "P", "match"]


@dataclass(frozen=True)
class _Part:
    ops: tuple[str, ...]
    label: str
    condition: Callable[[Node], bool] | None
    settings: Mapping[str, Any]
    optional: bool

    def fits(self, node: Node) -> bool:
        if not any(_named(op, node.op) for op in self.ops):
            return False
        missing = object()
        if any(node.settings.get(k, missing) != v for k, v in self.settings.items()):
            return False
        return self.condition is None or bool(self.condition(node))


@dataclass(frozen=True)
class Chain:
    """Calls one behind the other; ``>>`` adds to it."""

    parts: tuple[_Part, ...]

    def __rshift__(self, other: Chain) -> Chain:
        """Return the chain followed by another."""
        return Chain(self.parts + other.parts)

    def __or__(self, other: Chain) -> Chain:
        """Return a call that is one or the other."""
        if len(self.parts) != 1 or len(other.parts) != 1:
            msg = "`|` must join single calls, such as P('relu') | P('gelu')"
            raise GraphError(msg)
        return Chain((replace(self.parts[0], ops=self.parts[0].ops + other.parts[0].ops),))


def P(  # noqa: N802  # a pattern reads as one
    op: str, condition: Callable[[Node], bool] | None = None, /, label: str = "", **settings: Any
) -> Chain:
    """Return a pattern of one call.

    Args:
        op: a neutral op, its group, or a framework's bare name where the table has none; the
            wildcards ``*``, ``?`` and ``[...]`` do as in a rule.
        condition: of a node; must hold.
        label: name in the match; the op where it is left out.
        settings: what the call must have been called with, such as ``training=False``.

    Examples:
        >>> pattern = P("conv2d") >> P("batch_norm", training=False) >> Opt("relu")
        >>> [part.label for part in pattern.parts]
        ['conv2d', 'batch_norm', 'relu']
    """
    return Chain((_Part((op,), label or op, condition, settings, optional=False),))


def Opt(  # noqa: N802
    op: str, condition: Callable[[Node], bool] | None = None, /, label: str = "", **settings: Any
) -> Chain:
    """Return a pattern of one call that may be missing."""
    return Chain((_Part((op,), label or op, condition, settings, optional=True),))


@dataclass(frozen=True)
class Match:
    """Where a pattern fits: its nodes by label, in order.

    Attributes:
        nodes: the nodes; those of optional calls that are missing are not there.
    """

    nodes: Mapping[str, Node]

    def __getitem__(self, label: str) -> Node:
        """Return the node of one call."""
        if label not in self.nodes:
            msg = f"`label` must be one of {', '.join(self.nodes)}, got {label!r}"
            raise GraphError(msg)
        return self.nodes[label]

    def __contains__(self, label: str) -> bool:
        """Return whether an optional call is there."""
        return label in self.nodes

    def __iter__(self) -> Iterator[Node]:
        """Yield the nodes in order."""
        return iter(self.nodes.values())

    @property
    def last(self) -> Node:
        """The last node."""
        return list(self.nodes.values())[-1]


def match(pattern: Chain, graph: Graph) -> tuple[Match, ...]:
    """Return where ``pattern`` fits, in order; no node is in two matches.

    Raises:
        GraphError: the pattern has only optional calls, or one label twice.
    """
    labels = [part.label for part in pattern.parts]
    if all(part.optional for part in pattern.parts) or len(set(labels)) < len(labels):
        msg = f"`pattern` must ask for one call at least, with a label each, got {labels}"
        raise GraphError(msg)
    taken: set[str] = set()
    found = []
    for node in graph.nodes:
        nodes = _from(graph, pattern.parts, node, taken)
        if nodes:
            found.append(Match(nodes))
            taken.update(each.name for each in nodes.values())
    return tuple(found)


def _from(
    graph: Graph, parts: tuple[_Part, ...], node: Node | None, taken: set[str]
) -> dict[str, Node] | None:
    """Return the nodes by label of a chain that begins at ``node``; None where there is none."""
    if not parts:
        return {}
    part, rest = parts[0], parts[1:]
    if node is not None and node.name not in taken and part.fits(node):
        found = _from(graph, rest, _next(graph, node), taken)
        if found is not None:
            return {part.label: node, **found}
    return _from(graph, rest, node, taken) if part.optional else None


def _next(graph: Graph, node: Node) -> Node | None:
    """Return the only reader of what a node makes; None where there are more, or it goes out."""
    if not node.outputs or any(name in graph.outputs for name in node.outputs):
        return None
    users = {user.name: user for name in node.outputs for user in graph.users[name]}
    if len(users) != 1:
        return None
    (user,) = users.values()
    return user if user.inputs[0] in node.outputs else None


def _named(pattern: str, op: str) -> bool:
    if pattern == op:
        return True
    try:
        return op in [row.name for row in ops.match(pattern)]
    except PolicyError:  # an op that the table does not know
        return False
