"""One walk over a graph: what each call reads and hands on, and which casts that takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mpcore.graph.flow import castable, kept_exactly, widest
from mpcore.graph.ir import Cast, GraphPlan, is_float
from mpcore.numerics.dtypes import is_low

if TYPE_CHECKING:
    from mpcore.graph.deciding import Word
    from mpcore.graph.flow import Results
    from mpcore.graph.ir import Graph, Node

__all__ = ["CAST_BYTES", "Merged", "Walk"]

CAST_BYTES = 6
"""A cast of one element between float32 and 16 bits reads one and writes the other."""


@dataclass
class Walk:
    """One walk over a graph that casts at each use; ``list`` is this and nothing more.

    Attributes:
        graph: the graph.
        low: the 16-bit dtype.
        results: says what comes out.
        now: dtype of every value so far.
        weak: values that depend on no input of the graph.
    """

    graph: Graph
    low: str
    results: Results
    now: dict[str, str] = field(default_factory=dict)
    casts: list[Cast] = field(default_factory=list)
    compute: dict[str, str] = field(default_factory=dict)
    output: dict[str, str] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)
    weak: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Know what comes in; parameters and constants are cast along with activations."""
        made = self.graph.producer
        for value in self.graph.values:
            if value.name not in made:
                self.now[value.name] = value.dtype
                if value.kind in ("param", "buffer", "const"):
                    self.weak.add(value.name)

    def run(self, node: Node, word: Word) -> None:
        """Cast what a node reads, and note what it hands on."""
        wanted = word.dtype(self.low)
        names = castable(node, self.now)
        if word.compute in ("promote", "along"):
            counted = [n for n in names if n not in self.weak] if word.compute == "along" else []
            wanted = widest([self.now[name] for name in counted or names])
        if node.outputs and all(name in self.weak for name in node.inputs):
            self.weak.update(node.outputs)
        native = word.compute == "native" or node.kind == "opaque"
        if native:
            wanted = ""
        self.cast(node, names, wanted, word.why)
        self.cast_back(node)
        read = self.reads(node, names, wanted)
        out = self.results(self.graph, node, read)
        kept = [d for d in (self.now[n] for n in names) if is_float(d)]
        self.compute[node.name] = "native" if native else wanted or widest(kept) or "-"
        self.hand_on(node, out, word.result(self.low), word.why)

    def reads(self, node: Node, names: tuple[str, ...], wanted: str) -> tuple[str, ...]:
        """Return the dtypes that a node reads after its casts."""
        return tuple(
            wanted if wanted and name in names and i not in node.keeps else self.now[name]
            for i, name in enumerate(node.inputs)
        )

    def cast(self, node: Node, names: tuple[str, ...], wanted: str, why: str) -> None:
        """Cast those of ``names`` that are not ``wanted`` yet, for one node."""
        for name in names:
            if wanted and self.now[name] != wanted:
                self.casts.append(Cast(name, wanted, (node.name,), rule=why))

    def cast_back(self, node: Node) -> None:
        """Cast what a node takes in no other dtype than it was lifted in."""
        for name in kept_exactly(node, self.graph):
            before = self.graph.value[name].dtype
            if self.now[name] != before:
                self.casts.append(Cast(name, before, (node.name,), rule="taken in no other dtype"))

    def hand_on(self, node: Node, out: tuple[str, ...], wanted: str, why: str) -> None:
        """Note the results of a node; those that a rule wants in another dtype are cast."""
        self.rules[node.name] = why
        self.output[node.name] = "-"
        for i, (name, dtype) in enumerate(zip(node.outputs, out, strict=True)):
            hands_on = dtype
            if wanted and is_float(dtype) and dtype != wanted:
                users = [user.name for user in self.graph.users[name]]
                users += [""] if name in self.graph.outputs else []
                if users:
                    place = "after producer"
                    self.casts.append(Cast(name, wanted, tuple(users), place, rule=why))
                    hands_on = wanted
            self.now[name] = hands_on
            if i == 0:
                self.output[node.name] = hands_on

    def end(self, wanted: str) -> None:
        """Cast what the graph hands on."""
        for name in dict.fromkeys(self.graph.outputs):
            if wanted and is_float(self.now[name]) and self.now[name] != wanted:
                self.casts.append(Cast(name, wanted, ("",), rule="policy: output"))

    def plan(self, how: str, casts: list[Cast] | None = None, cost: float = -1.0) -> GraphPlan:
        """Return the plan."""
        found = tuple(self.casts if casts is None else casts)
        if cost < 0:
            cost = float(sum(self.graph.value[c.value].elements * CAST_BYTES for c in found))
        return GraphPlan(self.graph, self.compute, self.output, found, self.rules, cost, how)


class Merged:
    """The casts of a walk, as few as there can be with the same bits.

    The gradient of a value is the sum of what its users send, in float32, the last user's first.
    Casts of one value may be one where no gradient flows, or where that sum stays in its order:
    one cast then adds up what its users send, so every other user must have run before.
    """

    def __init__(self, walk: Walk) -> None:
        """Know the walk, which is not changed."""
        self.walk, self.graph = walk, walk.graph
        self.at = {node.name: i for i, node in enumerate(self.graph.nodes)}
        self.states = {name for node in self.graph.nodes for name in node.state}

    def plan(self) -> GraphPlan:
        """Return the plan with fewer casts."""
        groups: dict[tuple[str, str, str], list[Cast]] = {}
        for cast in self.walk.casts:
            groups.setdefault((cast.value, cast.dtype, self._region(cast)), []).append(cast)
        found: list[Cast] = []
        for casts in groups.values():
            found += self._one(casts) or casts
        order = {id(cast): i for i, cast in enumerate(found)}
        found.sort(key=lambda cast: (self._first(cast), order[id(cast)]))
        return self.walk.plan("exact", found)

    def _region(self, cast: Cast) -> str:
        node = self.graph.node.get(cast.users[0])
        return node.region if node is not None else ""

    def _first(self, cast: Cast) -> int:
        return min(self.at.get(user, len(self.at)) for user in cast.users)

    def _one(self, casts: list[Cast]) -> list[Cast]:
        """Return one cast for several, or nothing where that would move a bit."""
        if len(casts) < 2:
            return []
        value, dtype = self.graph.value[casts[0].value], casts[0].dtype
        users = tuple(user for cast in casts for user in cast.users)
        if "" in users or self._written(value.name):
            return []
        fork = value.grad and not self._cached(value.kind, dtype)
        if fork and not self._in_order(value.name, users):
            return []
        rule = f"{casts[0].rule}; one cast for {len(users)} calls"
        return [Cast(value.name, dtype, users, fork=fork, rule=rule)]

    def _cached(self, kind: str, dtype: str) -> bool:
        """Return whether autocast itself casts a value once: parameters, to the low dtype."""
        return kind == "param" and is_low(dtype)

    def _in_order(self, name: str, users: tuple[str, ...]) -> bool:
        if self.graph.value[name].kind != "result" or name in self.graph.outputs:
            return False  # what reads it elsewhere is not known
        first = min(self.at[user] for user in users)
        others = [n for n in self.graph.users[name] if n.name not in users]
        return all(self.at[node.name] < first for node in others)

    def _written(self, name: str) -> bool:
        """Return whether somebody writes into a value, so that a cast must not be older."""
        return name in self.states
