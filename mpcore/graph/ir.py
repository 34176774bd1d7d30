"""What a network is, call by call: values, nodes, graphs, and a plan of dtypes over them.

Frozen data without a framework; JSON round-trips. A parallel strategy is carried and never read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from mpcore._lib.columns import in_columns
from mpcore._lib.records import from_plain, to_plain
from mpcore.errors import GraphError, check_choice
from mpcore.numerics.dtypes import is_low

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "FLOATS",
    "Cast",
    "Graph",
    "GraphPlan",
    "Node",
    "Value",
    "is_16_bit",
    "is_float",
    "unique",
]

FLOATS = ("float32", "float16", "bfloat16")
"""The dtypes that a plan casts; float64 is never cast, as in every autocast."""

_VALUE_KINDS = ("input", "param", "buffer", "const", "result")
_NODE_KINDS = ("op", "call", "branch", "loop", "opaque")


def is_float(dtype: str) -> bool:
    """Return whether a plan may cast values of ``dtype``."""
    return dtype in FLOATS


def is_16_bit(dtype: str) -> bool:
    """Return whether ``dtype`` is one that a plan lowers to; words such as ``"-"`` are none."""
    return is_float(dtype) and is_low(dtype)


class _Json:
    """A record that goes into JSON and comes back."""

    def to_json(self) -> str:
        """Return a JSON object; ``from_json`` reads it back."""
        return json.dumps(to_plain(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what ``to_json`` wrote.

        Raises:
            GraphError: the text is no such object.
        """
        try:
            return from_plain(cls, json.loads(text))
        except (ValueError, TypeError) as exc:
            msg = f"`text` must be what {cls.__name__}.to_json wrote: {exc}"
            raise GraphError(msg) from exc


@dataclass(frozen=True)
class Value:
    """One tensor of a graph.

    Attributes:
        name: its own in the graph.
        shape: sizes; None in a dimension whose size is not known.
        dtype: as it is where nothing is cast.
        kind: ``"input"``, ``"param"``, ``"buffer"``, ``"const"`` or ``"result"``.
        grad: whether a gradient flows into it.
        size: number of elements in the example, where ``shape`` does not say it.
    """

    name: str
    shape: tuple[int | None, ...] = ()
    dtype: str = "float32"
    kind: str = "result"
    grad: bool = False
    size: int | None = None

    def __post_init__(self) -> None:
        """Refuse a kind that there is not."""
        check_choice("value.kind", self.kind, _VALUE_KINDS)

    @property
    def elements(self) -> int:
        """Number of elements; a dimension that nothing is known of counts as one."""
        if self.size is not None:
            return self.size
        count = 1
        for size in self.shape:
            count *= 1 if size is None else size
        return count


@dataclass(frozen=True)
class Node:
    """One call of an op, or of a graph.

    Attributes:
        name: its own in the graph: the path, a slash and the op, numbered where several are.
        op: neutral op of ``mpcore.numerics.ops``; the framework's bare name where there is none.
        target: the framework's name, such as ``"aten::linear.default"``.
        inputs: names of the values that it reads, in order; one may come twice.
        outputs: names of the values that it makes.
        roles: what each input is to the call, such as ``"weight"``; as many as inputs, or none.
        path: dotted path of the layer that called it; ``""`` for the model itself.
        layer: class of that layer.
        kind: ``"op"``, ``"call"`` (of ``graphs[0]``), ``"branch"``, ``"loop"``, or ``"opaque"``
            for what could not be lifted.
        state: buffers that it writes; such a node is never moved, copied, merged or dropped.
        order: its place among stateful and random nodes, which keep their order; -1 for others.
        strategy: how it is split over devices, in the framework's words; carried, never read.
        graphs: bodies of a call, branch or loop.
        settings: what it was called with besides tensors: plain values by name.
        keeps: positions of inputs that stay as they are whatever it computes in, such as the
            statistics of a normalisation.
        fixed: whether its results have the dtypes that they had, whatever comes in: a cast that
            stands in the model, or something that no dtype reaches.
        region: what it must not leave: values made in another region are not shared with it.
        exact: whether it takes what it ``keeps`` in no other dtype than it had; else in any.
    """

    name: str
    op: str
    target: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    path: str = ""
    layer: str = ""
    kind: str = "op"
    state: tuple[str, ...] = ()
    order: int = -1
    strategy: Any = None
    graphs: tuple[Graph, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    keeps: tuple[int, ...] = ()
    fixed: bool = False
    region: str = ""
    exact: bool = False

    def __post_init__(self) -> None:
        """Refuse a kind that there is not."""
        check_choice("node.kind", self.kind, _NODE_KINDS)

    def role(self, name: str) -> str | None:
        """Return the value that plays a role; None where none does."""
        return next((v for r, v in zip(self.roles, self.inputs, strict=False) if r == name), None)

    @property
    def pure(self) -> bool:
        """Whether leaving it out where nobody reads its results changes nothing."""
        return not self.state and self.order < 0 and self.kind == "op"


@dataclass(frozen=True)
class Graph(_Json):
    """Nodes in the order in which they run, and the values between them.

    Attributes:
        values: every value, inputs and parameters first.
        nodes: in an order in which each reads what is there.
        inputs: names of the values that come in, parameters and buffers among them.
        outputs: names of the values that go out; one may come twice.
        path: dotted path of what it is the body of; ``""`` for the model.

    Raises:
        GraphError: a name comes twice, or a node reads what nobody made before it.
    """

    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    path: str = ""

    def __post_init__(self) -> None:
        """Refuse a graph that could not run."""
        _check(self)

    @cached_property
    def value(self) -> Mapping[str, Value]:
        """Every value by its name."""
        return MappingProxyType({value.name: value for value in self.values})

    @cached_property
    def node(self) -> Mapping[str, Node]:
        """Every node by its name."""
        return MappingProxyType({node.name: node for node in self.nodes})

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that makes a value; those that come in have none."""
        return MappingProxyType({out: node for node in self.nodes for out in node.outputs})

    @cached_property
    def users(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read a value, in order, each once."""
        found: dict[str, dict[str, Node]] = {value.name: {} for value in self.values}
        for node in self.nodes:
            for name in node.inputs:
                found[name][node.name] = node
        return MappingProxyType({name: tuple(nodes.values()) for name, nodes in found.items()})

    def walk(self) -> Iterator[Node]:
        """Yield the nodes of this graph and of the graphs inside."""
        for node in self.nodes:
            yield node
            for body in node.graphs:
                yield from body.walk()

    def changed(self, **parts: Any) -> Graph:
        """Return a copy with other parts."""
        return replace(self, **parts)


@dataclass(frozen=True)
class Cast:
    """One cast, and who reads what it makes.

    Attributes:
        value: what is cast.
        dtype: to which dtype.
        users: names of the nodes that read the result, in order; a node that reads it twice
            comes twice, and ``""`` is the graph's own output.
        place: ``"before first user"`` or ``"after producer"``.
        fork: whether the gradients of several users are added up in float32, the last user's
            first, as single casts would; else they meet in the dtype of the cast.
        rule: what placed it, in words.
    """

    value: str
    dtype: str
    users: tuple[str, ...]
    place: str = "before first user"
    fork: bool = False
    rule: str = ""


@dataclass(frozen=True)
class GraphPlan(_Json):
    """A policy resolved over one graph.

    Attributes:
        graph: the graph.
        compute: dtype that each node's floating-point inputs have, by its name; ``"native"``
            for one that is left to the framework's own list.
        output: dtype of each node's first result.
        casts: every cast.
        rules: why, by the name of the node.
        cost: of all casts, in the unit of the costs that they were placed by.
        how: ``"list"``, ``"exact"`` or ``"cheapest"``.
    """

    graph: Graph
    compute: dict[str, str] = field(hash=False)
    output: dict[str, str] = field(hash=False)
    casts: tuple[Cast, ...]
    rules: dict[str, str] = field(hash=False)
    cost: float = 0.0
    how: str = "exact"

    @property
    def elements(self) -> int:
        """Elements that the casts of one forward pass read."""
        return sum(self.graph.value[cast.value].elements for cast in self.casts)

    @property
    def opaque(self) -> tuple[str, ...]:
        """Names of the nodes that were not lifted."""
        return tuple(node.name for node in self.graph.walk() if node.kind == "opaque")

    def __str__(self) -> str:
        """Return a line a node, then the casts."""
        head = ("call", "op", "compute", "output", "decided by")
        rows = [
            (
                n.name,
                n.op,
                self.compute.get(n.name, "-"),
                self.output.get(n.name, "-"),
                self.rules.get(n.name, ""),
            )
            for n in self.graph.nodes
        ]
        return "\n".join([*in_columns(head, rows, ruled=False), "", self.summary()])

    def summary(self) -> str:
        """Return one line: calls, casts, elements."""
        low = sum(is_16_bit(dtype) for dtype in self.compute.values())
        opaque = f"; not lifted: {', '.join(self.opaque)}" if self.opaque else ""
        return (
            f"{len(self.graph.nodes)} calls, {low} in 16 bits; {len(self.casts)} casts of "
            f"{self.elements:,} elements a forward pass (place={self.how}){opaque}"
        )


def unique(name: str, taken: Any) -> str:
    """Return ``name``, or the first of ``name_1``, ``name_2`` that is not in ``taken``.

    Examples:
        >>> unique("blocks.0/matmul", {"blocks.0/matmul"})
        'blocks.0/matmul_1'
    """
    if name not in taken:
        return name
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


def _check(graph: Graph) -> None:
    known: set[str] = set()
    for value in graph.values:
        if value.name in known:
            msg = f"`graph.values` must have a name each, {value.name!r} comes twice"
            raise GraphError(msg)
        known.add(value.name)
    made: set[str] = set()
    for node in graph.nodes:
        made.update(node.outputs)
    ready = known - made
    missing = [name for name in graph.inputs if name not in ready]
    if missing:
        msg = f"`graph.inputs` must be values that no node makes, {missing[0]!r} is not"
        raise GraphError(msg)
    names: set[str] = set()
    for node in graph.nodes:
        if node.name in names:
            msg = f"`graph.nodes` must have a name each, {node.name!r} comes twice"
            raise GraphError(msg)
        names.add(node.name)
        for name in node.inputs:
            if name not in ready:
                msg = f"node {node.name!r} reads {name!r}, which nothing makes before it"
                raise GraphError(msg)
        for name in node.outputs:
            if name not in known or name in ready:
                msg = f"node {node.name!r} makes {name!r}, which is no value or made twice"
                raise GraphError(msg)
        ready.update(node.outputs)
    for name in graph.outputs:
        if name not in ready:
            msg = f"`graph.outputs` must be values of the graph, {name!r} is none"
            raise GraphError(msg)
