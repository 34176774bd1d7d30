"""A gradient that is clipped at one place: an identity whose backward pass bounds what it sends."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from mpcore.errors import GraphError
from mpcore.graph.edit import insert_after
from mpcore.graph.ir import Node, unique

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore.graph.ir import Graph

__all__ = ["CLIP", "check_bound", "clip_gradient", "refuse_none"]

CLIP = "mpcore::clip_gradient"
"""Target of the node; ``settings`` hold ``norm`` or ``value``, the bound of unscaled gradients."""


def check_bound(norm: float | None, value: float | None) -> None:
    """Raise GraphError unless one of them is a positive number and the other None."""
    bound = norm if value is None else value
    if (norm is None) == (value is None) or bound is None or not 0 < bound < math.inf:
        msg = f"`norm` or `value` must be a positive number, got norm={norm!r}, value={value!r}"
        raise GraphError(msg)


def refuse_none() -> NoReturn:
    """Raise GraphError: a pattern matched nothing."""
    msg = "`pattern` must match a call whose gradient is to be clipped; it matches none"
    raise GraphError(msg)


def clip_gradient(
    graph: Graph, nodes: Iterable[Node], *, norm: float | None = None, value: float | None = None
) -> Graph:
    """Return a graph in which the gradient of what ``nodes`` make is clipped.

    Args:
        graph: the graph.
        nodes: whose first results are meant.
        norm: the largest norm of the gradient of one value, or
        value: the largest size of each of its elements.

    Raises:
        GraphError: not one bound is given, it is no positive number, or nothing is to be clipped.
    """
    check_bound(norm, value)
    names = [node.outputs[0] for node in nodes if node.outputs]
    if not names:
        refuse_none()
    settings = {"value": value} if norm is None else {"norm": norm}
    for name in names:
        maker = graph.producer[name]
        title = unique(f"{maker.path}/clip_gradient", graph.node)
        result = replace(graph.value[name], name=unique(f"{name}.clipped", graph.value))
        node = Node(
            title,
            "clip_gradient",
            CLIP,
            (name,),
            (result.name,),
            ("input",),
            path=maker.path,
            layer=maker.layer,
            settings=settings,
            region=maker.region,
        )
        graph = insert_after(graph, name, node, result)
    return graph
