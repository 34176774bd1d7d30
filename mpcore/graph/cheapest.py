"""The plan with the cheapest casts: a minimum cut between what is low and what is full.

Every call that the words leave free is put on one of two sides. A value that is made on one side
and read on the other costs one cast, however many read it. What a word decides is bound to its
side by infinite capacities, so that a rule always holds. Calls whose results do not bear rounding
(sums, powers, losses) and calls that the op table does not know keep the side that the list gives
them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mpcore.errors import GraphError
from mpcore.graph.cut import Network
from mpcore.graph.deciding import Word
from mpcore.graph.flow import kept_exactly
from mpcore.graph.ir import Cast, is_16_bit, is_float
from mpcore.graph.walk import CAST_BYTES, Merged, Walk
from mpcore.numerics import ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.graph.flow import Results
    from mpcore.graph.ir import Graph, GraphPlan, Node

__all__ = ["Sides", "cheapest", "promotes", "sides_of"]

_MOST_RETRIES = 50
_WIDENS = ("elementwise", "layout")
_BEARS = ("norm",)  # groups that are listed as full and yet take and give 16 bits well


def cheapest(
    graph: Graph,
    words: Mapping[str, Word],
    low: str,
    results: Results,
    output: str,
) -> GraphPlan:
    """Return the plan that casts least; see ``mpcore.graph.placing``."""
    sides, listed = sides_of(graph, words, low, results, {}, output)
    for _ in range(_MOST_RETRIES):
        walk = _Coloured(graph, low, results)
        _, on_low = sides.cut()
        try:
            for node in graph.nodes:
                walk.colour(node, words[node.name], on_low.get(node.name))
        except GraphError:
            if sides.bound.get(node.name) is not None:
                raise
            sides.bound[node.name] = False  # the framework has no such kernel
            continue
        walk.end(output)
        # What widens itself where two free inputs meet is free, and the cut cannot know.
        plans = [_Shared(each).plan_of(sides) for each in (walk, listed)]
        return min(plans, key=lambda plan: plan.cost)
    msg = f"`place=cheapest` found no side for {node.name!r}; use place=exact"
    raise GraphError(msg)


def sides_of(
    graph: Graph,
    words: Mapping[str, Word],
    low: str,
    results: Results,
    costs: Mapping[str, float],
    output: str,
) -> tuple[Sides, Walk]:
    """Return what is to be cut, and the walk by list that it begins with.

    ``costs`` are those of a cast of each value; bytes where one is left out.
    """
    listed = Walk(graph, low, results)
    for node in graph.nodes:
        listed.run(node, words[node.name])
    dtypes = dict(listed.now)
    listed.end(output)
    bound = _bound(graph, words, listed, low)
    left = {name for name, word in words.items() if word.compute == "native"}
    return Sides(graph, bound, dtypes, costs, output, left), listed


def promotes(node: Node) -> bool:
    """Return whether a call itself widens what comes in to the widest."""
    if node.exact:  # a framework whose calls take one dtype
        return False
    known = {row.name: row for row in ops.ops()}
    if node.op not in known or known[node.op].category != "promote":
        return False
    return known[node.op].group in _WIDENS  # the others an autocast widens, no kernel does


def _bound(
    graph: Graph, words: Mapping[str, Word], listed: Walk, low: str
) -> dict[str, bool | None]:
    """Return by node whether it is low, full, or free."""
    table = {row.name: row for row in ops.ops()}
    found: dict[str, bool | None] = {}
    for node in graph.nodes:
        word = words[node.name]
        row = table.get(node.op)
        wanted = word.dtype(low)
        if wanted:
            found[node.name] = is_16_bit(wanted)
        elif row is None or (row.category == "full" and row.group not in _BEARS) or word.rule:
            found[node.name] = is_16_bit(listed.output[node.name])
        else:
            found[node.name] = None
    return found


class Sides:
    """The two sides of a graph, and what lies between them.

    Attributes:
        bound: by node whether it must be low (True), full (False), or may be either.
        weights: by node what it costs to be low; less than 0 where it saves.
    """

    def __init__(
        self,
        graph: Graph,
        bound: dict[str, bool | None],
        dtypes: Mapping[str, str],
        costs: Mapping[str, float],
        output: str,
        left: set[str],
    ) -> None:
        """Know what is bound, what is left to the framework, and what casts cost."""
        self.left = left
        self.graph, self.bound, self.dtypes = graph, bound, dtypes
        self.costs, self.output = costs, output
        self.weights: dict[str, float] = {}

    def cost(self, name: str) -> float:
        """Return what a cast of a value costs."""
        return self.costs.get(name, float(self.graph.value[name].elements * CAST_BYTES))

    def has_side(self, node: Node) -> bool:
        """Return whether a node is put on a side; else it takes and gives what it always does."""
        if node.fixed or node.name in self.left or _writes_first(node):
            return False
        return any(is_float(self.dtypes[n]) for n in (*node.inputs, *node.outputs))

    def made_low(self, name: str) -> bool | None:
        """Return the side of a value that no free node makes: known; None for the others."""
        node = self.graph.producer.get(name)
        while node is not None and _writes_first(node):
            name = node.inputs[0]
            node = self.graph.producer.get(name)
        if node is not None and self.has_side(node):
            return self.bound[node.name]
        return is_16_bit(self.dtypes[name])

    def maker(self, name: str) -> Node | None:
        """Return the node whose side a value is on; None where none has one."""
        node = self.graph.producer.get(name)
        while node is not None and _writes_first(node):
            node = self.graph.producer.get(node.inputs[0])
        return node if node is not None and self.has_side(node) else None

    def readers(self, name: str) -> tuple[Node, ...]:
        """Return the nodes that want a value in the dtype of their side."""
        return tuple(
            node
            for node in self.graph.users[name]
            if self.has_side(node)
            and any(n == name and i not in node.keeps for i, n in enumerate(node.inputs))
        )

    def lifts_free(self, node: Node, name: str) -> bool:
        """Return whether ``node``, when full, widens ``name`` itself: another input is full."""
        if not promotes(node):
            return False
        others = [n for n in node.inputs if n != name and is_float(self.dtypes[n])]
        return any(self.made_low(n) is False and self.graph.value[n].shape for n in others)

    def cut(self) -> tuple[float, dict[str, bool]]:
        """Return the cost of the cheapest assignment, and by node whether it is low."""
        network = Network()
        at = {node.name: network.vertex() for node in self.graph.nodes if self.has_side(node)}
        for name, vertex in at.items():
            if self.bound[name] is True:
                network.edge(0, vertex)
            elif self.bound[name] is False:
                network.edge(vertex, 1)
            elif weight := self.weights.get(name, 0.0):
                ends = (vertex, 1) if weight > 0 else (0, vertex)
                network.edge(*ends, abs(weight))
        for value in self.graph.values:
            if is_float(self.dtypes[value.name]):
                self._connect(network, at, value.name)
        cost = network.cut()
        if math.isinf(cost):
            msg = "`rules` bind one call to both dtypes; see mp.explain"
            raise GraphError(msg)
        side = network.low_side()
        return cost, {name: side[vertex] for name, vertex in at.items()}

    def _connect(self, network: Network, at: dict[str, int], name: str) -> None:
        readers = self.readers(name)
        ends = [(at[node.name], self.lifts_free(node, name)) for node in readers]
        if self.output and name in self.graph.outputs:
            ends.append((0 if is_16_bit(self.output) else 1, False))
        for node in self.graph.users[name]:
            if name in kept_exactly(node, self.graph):
                ends.append((0 if is_16_bit(self.graph.value[name].dtype) else 1, False))
        if not ends:
            return
        maker = self.maker(name)
        made = at[maker.name] if maker is not None else (0 if self.made_low(name) else 1)
        down, up = network.vertex(), network.vertex()
        network.edge(down, made, self.cost(name))
        network.edge(made, up, self.cost(name))
        for end, free in ends:
            network.edge(end, down)
            if not free:
                network.edge(up, end)


def _writes_first(node: Node) -> bool:
    return bool(node.inputs) and node.inputs[0] in node.state


class _Coloured(Walk):
    """A walk in which every node is on a side."""

    def colour(self, node: Node, word: Word, low: bool | None) -> None:
        """Run a node on its side; None leaves it as it is."""
        if low is None:
            left = word.compute == "native"
            self.run(node, word if left else Word("follow", word.output, word.why))
            return
        if word.dtype(self.low):
            self.run(node, word)
            return
        side = "lower" if low else "full"
        self.run(node, Word(side, word.output, f"{word.why}; cheapest: {side}"))

    def cast(self, node: Node, names: tuple[str, ...], wanted: str, why: str) -> None:
        """Leave out the casts that a promoting node does itself."""
        if wanted == "float32" and promotes(node):
            full = [n for n in names if self.now[n] == wanted and self.graph.value[n].shape]
            if full:
                return
        super().cast(node, names, wanted, why)

    def reads(self, node: Node, names: tuple[str, ...], wanted: str) -> tuple[str, ...]:
        """Return the dtypes after those casts."""
        if wanted == "float32" and promotes(node):
            full = [n for n in names if self.now[n] == wanted and self.graph.value[n].shape]
            if full:
                return tuple(self.now[n] for n in node.inputs)
        return super().reads(node, names, wanted)


class _Shared(Merged):
    """One cast for a value and a dtype, whatever its gradients meet in."""

    def plan_of(self, sides: Sides) -> GraphPlan:
        """Return the plan, with what its casts cost."""
        casts = list(self.plan().casts)
        cost = sum(sides.cost(cast.value) for cast in casts)
        return self.walk.plan("cheapest", casts, cost)

    def _one(self, casts: list[Cast]) -> list[Cast]:
        if len(casts) < 2 or self._written(casts[0].value):
            return []
        users = tuple(user for cast in casts for user in cast.users)
        rule = f"{casts[0].rule}; one cast for {len(users)} calls"
        return [Cast(casts[0].value, casts[0].dtype, users, rule=rule)]
