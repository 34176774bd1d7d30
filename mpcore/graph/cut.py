"""A minimum s-t cut (Dinic), for graphs of some thousand vertices."""

from __future__ import annotations

import math

__all__ = ["Network"]

_EVERYTHING = math.inf


class Network:
    """A network of vertices with capacities between them; 0 is the source, 1 the sink.

    Examples:
        >>> network = Network()
        >>> a = network.vertex()
        >>> network.edge(0, a, 3.0)
        >>> network.edge(a, 1, 2.0)
        >>> network.cut(), network.low_side()[a]
        (2.0, True)
    """

    def __init__(self) -> None:
        """Have a source and a sink."""
        self._edges: list[list[int]] = [[], []]
        self._to: list[int] = []
        self._left: list[float] = []

    def vertex(self) -> int:
        """Return a new vertex."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: float = _EVERYTHING) -> None:
        """Let as much flow from ``tail`` to ``head``; without a number, everything."""
        for home, to, left in ((tail, head, capacity), (head, tail, 0.0)):
            self._edges[home].append(len(self._to))
            self._to.append(to)
            self._left.append(left)

    def cut(self) -> float:
        """Return what the cheapest cut costs; infinite where source and sink are bound."""
        total = 0.0
        while (level := self._levels(0))[1] >= 0:
            at = [0] * len(self._edges)
            while flow := self._push(level, at):
                if flow == _EVERYTHING:
                    return _EVERYTHING
                total += flow
        return total

    def low_side(self) -> list[bool]:
        """Return by vertex whether it is on the source's side, the largest such side."""
        return [level < 0 for level in self._levels(1, backwards=True)]

    def _levels(self, start: int, *, backwards: bool = False) -> list[int]:
        level = [-1] * len(self._edges)
        level[start] = 0
        queue = [start]
        for vertex in queue:  # it grows while it is read
            for edge in self._edges[vertex]:
                open_ = self._left[edge ^ 1] if backwards else self._left[edge]
                if open_ > 0 and level[self._to[edge]] < 0:
                    level[self._to[edge]] = level[vertex] + 1
                    queue.append(self._to[edge])
        return level

    def _push(self, level: list[int], at: list[int]) -> float:
        """Send flow along one shortest path; return how much, 0 where there is none."""
        path: list[int] = []
        vertex = 0
        while vertex != 1:
            edges = self._edges[vertex]
            while at[vertex] < len(edges):
                edge = edges[at[vertex]]
                if self._left[edge] > 0 and level[self._to[edge]] == level[vertex] + 1:
                    break
                at[vertex] += 1
            else:
                if not path:
                    return 0.0
                vertex = self._to[path.pop() ^ 1]
                at[vertex] += 1
                continue
            path.append(edge)
            vertex = self._to[edge]
        flow = min(self._left[edge] for edge in path)
        if flow < _EVERYTHING:
            for edge in path:
                self._left[edge] -= flow
                self._left[edge ^ 1] += flow
        return flow
