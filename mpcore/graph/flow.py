"""Which dtypes flow through a graph: what comes out of a call, and which inputs a cast is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mpcore.graph.ir import is_float

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpcore.graph.ir import Graph, Node

__all__ = ["Results", "by_promotion", "castable", "kept_exactly", "widest"]


class Results(Protocol):
    """Says which dtypes a call hands on; a framework is asked where there is one."""

    def __call__(self, graph: Graph, node: Node, dtypes: Sequence[str]) -> tuple[str, ...]:
        """Return the dtype of each output for inputs of ``dtypes``.

        Raises:
            GraphError: the framework has no such call.
        """
        ...


def by_promotion(graph: Graph, node: Node, dtypes: Sequence[str]) -> tuple[str, ...]:
    """Return what comes out where every call hands on the widest dtype that comes in."""
    given = [d for i, d in enumerate(dtypes) if is_float(d) and i not in node.keeps]
    hands_on = widest(given)
    before = [graph.value[name].dtype for name in node.outputs]
    if node.fixed or not hands_on:
        return tuple(before)
    return tuple(hands_on if is_float(dtype) else dtype for dtype in before)


def widest(dtypes: Sequence[str]) -> str:
    """Return the dtype that holds all of ``dtypes``; ``""`` for none.

    Examples:
        >>> widest(["bfloat16", "float32"]), widest(["float16", "bfloat16"])
        ('float32', 'float32')
    """
    distinct = set(dtypes)
    if len(distinct) > 1:
        return "float32"
    return distinct.pop() if distinct else ""


def castable(node: Node, now: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the inputs that a cast is for; what is read twice comes twice."""
    return tuple(
        name for i, name in enumerate(node.inputs) if i not in node.keeps and is_float(now[name])
    )


def kept_exactly(node: Node, graph: Graph) -> tuple[str, ...]:
    """Return the names of floating-point inputs that a call takes as they were lifted alone."""
    if not node.exact:
        return ()
    names = (node.inputs[i] for i in node.keeps)
    return tuple(name for name in names if is_float(graph.value[name].dtype))
