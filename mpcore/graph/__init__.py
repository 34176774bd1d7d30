"""A network as a graph: every call, every cast and why; patterns, changes, plans and files.

``mp.graph.NAME`` imports the file that holds the name when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpcore.graph.deciding import Word as Word
    from mpcore.graph.deciding import words as words
    from mpcore.graph.edit import insert_after as insert_after
    from mpcore.graph.edit import remove as remove
    from mpcore.graph.edit import remove_dead as remove_dead
    from mpcore.graph.edit import rename as rename
    from mpcore.graph.edit import replace_node as replace_node
    from mpcore.graph.ir import Cast as Cast
    from mpcore.graph.ir import Graph as Graph
    from mpcore.graph.ir import GraphPlan as GraphPlan
    from mpcore.graph.ir import Node as Node
    from mpcore.graph.ir import Value as Value
    from mpcore.graph.lifting import clip_gradient as clip_gradient
    from mpcore.graph.lifting import fold_batch_norm as fold_batch_norm
    from mpcore.graph.lifting import lift as lift
    from mpcore.graph.lifting import source as source
    from mpcore.graph.lifting import time_graph as time_graph
    from mpcore.graph.part import Lifted as Lifted
    from mpcore.graph.pattern import Match as Match
    from mpcore.graph.pattern import Opt as Opt
    from mpcore.graph.pattern import P as P
    from mpcore.graph.pattern import match as match
    from mpcore.graph.placing import place as place
    from mpcore.graph.searching import Candidate as Candidate
    from mpcore.graph.searching import frontier as frontier
    from mpcore.graph.searching import search as search
    from mpcore.graph.timing import Timed as Timed

_HOMES = {
    "Candidate": "searching",
    "Cast": "ir",
    "Graph": "ir",
    "GraphPlan": "ir",
    "Lifted": "part",
    "Match": "pattern",
    "Node": "ir",
    "Opt": "pattern",
    "P": "pattern",
    "Timed": "timing",
    "Value": "ir",
    "Word": "deciding",
    "clip_gradient": "lifting",
    "fold_batch_norm": "lifting",
    "frontier": "searching",
    "insert_after": "edit",
    "lift": "lifting",
    "match": "pattern",
    "place": "placing",
    "remove": "edit",
    "remove_dead": "edit",
    "rename": "edit",
    "replace_node": "edit",
    "search": "searching",
    "source": "lifting",
    "time_graph": "lifting",
    "words": "deciding",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
