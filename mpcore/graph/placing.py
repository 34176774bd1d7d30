"""Where the casts of a plan lie: as autocast casts, or fewer of them with the same bits.

``list`` casts at each use, as the autocast of a framework does. ``exact`` makes one cast of those
of one value, with gradients that are added up as before, and leaves out casts up and down again:
every bit of the forward and the backward pass stays. ``cheapest`` (``mpcore.graph.cheapest``)
lowers and lifts what the words leave free so that the least is cast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.errors import check_choice
from mpcore.graph.cheapest import cheapest
from mpcore.graph.flow import by_promotion
from mpcore.graph.walk import Merged, Walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.graph.deciding import Word
    from mpcore.graph.flow import Results
    from mpcore.graph.ir import Graph, GraphPlan

__all__ = ["HOW", "place"]

HOW = ("list", "exact", "cheapest")


def place(
    graph: Graph,
    words: Mapping[str, Word],
    low: str,
    how: str = "exact",
    *,
    results: Results = by_promotion,
    output: str = "",
) -> GraphPlan:
    """Return where the casts lie.

    Args:
        graph: the graph.
        words: the word of every node; see ``mpcore.graph.deciding``.
        low: the 16-bit dtype that ``"lower"`` stands for.
        how: ``"list"``, ``"exact"`` or ``"cheapest"``.
        results: says what comes out of a call.
        output: dtype that the graph's floating-point outputs are cast to; ``""`` for none.
    """
    check_choice("place", how, HOW)
    if how == "cheapest":
        return cheapest(graph, words, low, results, output)
    walk = Walk(graph, low, results)
    for node in graph.nodes:
        walk.run(node, words[node.name])
    walk.end(output)
    if how == "list":
        return walk.plan("list")
    return Merged(walk).plan()
