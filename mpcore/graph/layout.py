"""Where the calls of a graph stand in a picture: rows by depth, near to what they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpcore.graph.ir import Graph

__all__ = ["Placed", "placed"]


@dataclass(frozen=True)
class Placed:
    """Row and column of every node, and how many there are.

    Attributes:
        at: (column, row) by the name of the node.
        columns: number of columns.
        rows: number of rows.
    """

    at: dict[str, tuple[float, int]]
    columns: float
    rows: int


def placed(graph: Graph) -> Placed:
    """Return a layered layout: who reads stands under whom it reads, as straight as it goes."""
    row: dict[str, int] = {}
    above: dict[str, list[str]] = {}
    for node in graph.nodes:
        makers = [graph.producer[name].name for name in node.inputs if name in graph.producer]
        above[node.name] = list(dict.fromkeys(makers))
        row[node.name] = max((row[name] + 1 for name in makers), default=0)
    _let_down(graph, above, row)
    rows: dict[int, list[str]] = {}
    for name, number in row.items():
        rows.setdefault(number, []).append(name)
    at: dict[str, tuple[float, int]] = {}
    for number in sorted(rows):
        wanted = {name: _mean([at[a][0] for a in above[name]]) for name in rows[number]}
        free = 0.0
        for name in sorted(rows[number], key=lambda name: wanted[name]):
            column = max(free, wanted[name])
            at[name] = (column, number)
            free = column + 1
    columns = max((column for column, _ in at.values()), default=0.0) + 1
    return Placed(at, columns, len(rows))


def _let_down(graph: Graph, above: dict[str, list[str]], row: dict[str, int]) -> None:
    """Put what nothing comes into, such as a mask that is made, right above who reads it."""
    given = {value.name for value in graph.values if value.kind in ("input", "param")}
    loose: set[str] = set()
    for node in graph.nodes:
        if not given & set(node.inputs) and loose.issuperset(above[node.name]):
            loose.add(node.name)
    for node in reversed(graph.nodes):
        below = [row[user.name] for name in node.outputs for user in graph.users[name]]
        if node.name in loose and below:
            row[node.name] = min(below) - 1


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
