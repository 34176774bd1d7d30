"""Changes of a graph: each returns a new one, and is refused where it would lose something."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from mpcore.errors import GraphError
from mpcore.graph.ir import unique

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.graph.ir import Graph, Node, Value

T = TypeVar("T")

__all__ = [
    "by_new_names",
    "insert_after",
    "origins",
    "remove",
    "remove_dead",
    "rename",
    "replace_node",
]


def insert_after(graph: Graph, value: str, node: Node, result: Value) -> Graph:
    """Return a graph in which ``node`` reads ``value``, and all who read it read the result.

    Args:
        graph: the graph.
        value: name of the value.
        node: what is put in; its first input must be ``value``, its first output the result's.
        result: what it makes; of the same dtype and shape as ``value``.

    Raises:
        GraphError: a name is taken, or the result is of another dtype or shape.
    """
    known = _value(graph, value)
    if node.name in graph.node or result.name in graph.value:
        msg = f"`node` must have a name of its own, {node.name!r} or {result.name!r} is taken"
        raise GraphError(msg)
    if node.inputs[:1] != (value,) or node.outputs[:1] != (result.name,):
        msg = f"`node` must read {value!r} first and make {result.name!r}, got {node.name!r}"
        raise GraphError(msg)
    if (result.dtype, result.shape) != (known.dtype, known.shape):
        msg = (
            f"`result` must be {known.dtype}{list(known.shape)} as {value!r} is, got "
            f"{result.dtype}{list(result.shape)}; insert a cast as well"
        )
        raise GraphError(msg)
    writers = [other.name for other in graph.nodes if value in other.state]
    if writers:
        msg = f"`value` {value!r} is written into by {writers[0]!r}; put the node in after it"
        raise GraphError(msg)
    renamed = {value: result.name}
    maker = graph.producer.get(value)
    at = 0 if maker is None else graph.nodes.index(maker) + 1
    rest = tuple(_reading(other, renamed) for other in graph.nodes[at:])
    return graph.changed(
        values=(*graph.values, result),
        nodes=(*graph.nodes[:at], node, *rest),
        outputs=tuple(renamed.get(name, name) for name in graph.outputs),
    )


def remove(graph: Graph, name: str) -> Graph:
    """Return a graph without a node; who read its result reads what it read first.

    Raises:
        GraphError: it has state, its results differ in dtype or shape from its first input, or it
            has several that are read.
    """
    node = _node(graph, name)
    if not node.pure:
        what = f"it writes {', '.join(node.state)}" if node.state else "its order counts"
        msg = f"`node` {name!r} must not be removed: {what}"
        raise GraphError(msg)
    read = [out for out in node.outputs if graph.users[out] or out in graph.outputs]
    if len(read) > 1 or (read and (read[0] != node.outputs[0] or not node.inputs)):
        msg = f"`node` {name!r} must not be removed: it makes {read}, which are read"
        raise GraphError(msg)
    renamed = {}
    if read:
        before, after = _value(graph, node.inputs[0]), _value(graph, node.outputs[0])
        if (before.dtype, before.shape) != (after.dtype, after.shape):
            msg = (
                f"`node` {name!r} must not be removed: it makes {after.dtype}{list(after.shape)} "
                f"of {before.dtype}{list(before.shape)}; replace it"
            )
            raise GraphError(msg)
        renamed = {node.outputs[0]: node.inputs[0]}
    return _without(graph, {name}, renamed)


def replace_node(graph: Graph, name: str, node: Node) -> Graph:
    """Return a graph with another node in the place of one; it makes the same values.

    Raises:
        GraphError: it makes other values, reads one that is not there yet, or drops state.
    """
    old = _node(graph, name)
    if node.outputs != old.outputs:
        msg = f"`node` must make {list(old.outputs)} as {name!r} does, got {list(node.outputs)}"
        raise GraphError(msg)
    if set(old.state) - set(node.state) or (old.order >= 0 and node.order != old.order):
        msg = f"`node` {name!r} must keep the state and order of what it replaces"
        raise GraphError(msg)
    strategy = old.strategy if node.strategy is None else node.strategy
    new = replace(node, strategy=strategy)
    return graph.changed(nodes=tuple(new if each is old else each for each in graph.nodes))


def remove_dead(graph: Graph) -> Graph:
    """Return a graph without nodes whose results nobody reads; those with state stay."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not node.pure or needed & set(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    dead = {node.name for node in graph.nodes} - {node.name for node in kept}
    return _without(graph, dead, {}) if dead else graph


def rename(graph: Graph, name: str, new: str) -> Graph:
    """Return a graph in which a node has another name.

    Raises:
        GraphError: the name is taken.
    """
    node = _node(graph, name)
    if new in graph.node and new != name:
        near = unique(new, graph.node)
        msg = f"`name` must be a node's own, {new!r} is taken; {near!r} is not"
        raise GraphError(msg)
    named = replace(node, name=new)
    return graph.changed(nodes=tuple(named if each is node else each for each in graph.nodes))


def origins(before: Graph, after: Graph) -> dict[str, str]:
    """Return what each node was called before, by its name now; nodes that are new are left out."""
    made = {out: node.name for node in before.nodes for out in node.outputs}
    found = {}
    for node in after.nodes:
        old = before.node.get(node.name)
        if node.outputs:
            found[node.name] = made.get(node.outputs[0], "")
        elif old is not None and not old.outputs and old.target == node.target:
            found[node.name] = old.name
    return {name: old for name, old in found.items() if old}


def by_new_names(table: Mapping[str, T], before: Graph, after: Graph) -> dict[str, T]:
    """Return what was known of nodes by name, by their names in ``after``."""
    names = origins(before, after)
    return {name: table[old] for name, old in names.items() if old in table}


def _without(graph: Graph, dead: set[str], renamed: Mapping[str, str]) -> Graph:
    gone = {out for node in graph.nodes if node.name in dead for out in node.outputs}
    return graph.changed(
        values=tuple(value for value in graph.values if value.name not in gone),
        nodes=tuple(_reading(node, renamed) for node in graph.nodes if node.name not in dead),
        outputs=tuple(renamed.get(name, name) for name in graph.outputs),
    )


def _reading(node: Node, renamed: Mapping[str, str]) -> Node:
    if not any(name in renamed for name in node.inputs):
        return node
    return replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))


def _node(graph: Graph, name: str) -> Node:
    if name not in graph.node:
        msg = f"`node` must be a node of the graph, got {name!r}; the first is {_first(graph)!r}"
        raise GraphError(msg)
    return graph.node[name]


def _first(graph: Graph) -> str:
    return graph.nodes[0].name if graph.nodes else ""


def _value(graph: Graph, name: str) -> Value:
    if name not in graph.value:
        msg = f"`value` must be a value of the graph, got {name!r}"
        raise GraphError(msg)
    return graph.value[name]
