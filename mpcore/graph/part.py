"""What a backend's graph part does: lift a model, build one of a graph, write one to a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mpcore.backend.parts import Part

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    import numpy as np
    import numpy.typing as npt

    from mpcore.graph.ir import Graph, GraphPlan
    from mpcore.graph.pattern import Chain, Match
    from mpcore.policy.policy import Policy

__all__ = ["GRAPH", "GraphPart", "Lifted"]


@dataclass(frozen=True)
class Lifted:
    """A model as graphs: one, or several where Python decides between them.

    Attributes:
        graphs: in the order in which the example ran them.
        model: the model; nothing of it was changed.
        example: the arguments that it was lifted with.
        handle: what the backend needs to build a model of it.
        training: whether it was lifted as it trains.
    """

    graphs: tuple[Graph, ...]
    model: Any
    example: tuple[Any, ...]
    handle: Any = field(default=None, repr=False)
    training: bool = False

    @property
    def graph(self) -> Graph:
        """The graph; the first where there are several."""
        return self.graphs[0]

    def match(self, pattern: Chain) -> tuple[Match, ...]:
        """Return where a pattern fits, in all graphs."""
        from mpcore.graph.pattern import match

        return tuple(found for graph in self.graphs for found in match(pattern, graph))


class GraphPart(Protocol):
    """Lifts, builds and writes models of one framework."""

    def lift(self, model: Any, example: tuple[Any, ...], /, *, training: bool) -> Lifted:
        """Return a model as graphs; building them without casts gives its own bits.

        Raises:
            GraphError: nothing was lifted, something cannot be, or the bits differ, with the
                first call that does.
        """
        ...

    def plan(self, lifted: Lifted, policy: Policy, /) -> tuple[GraphPlan, ...]:
        """Return the plan of each graph on the device that the model is on."""
        ...

    def build(
        self, lifted: Lifted, graphs: tuple[Graph, ...], arrays: Mapping[str, npt.NDArray[Any]], /
    ) -> Any:
        """Return a new model that runs ``graphs``; parameters are shared but for ``arrays``."""
        ...

    def export(
        self, model: Any, path: str | PathLike[str], policy: Policy, example: tuple[Any, ...], /
    ) -> Any:
        """Write a model to a file with a policy baked in; return what was checked."""
        ...

    def arrays(self, lifted: Lifted, /) -> Mapping[str, npt.NDArray[np.float32]]:
        """Return the values of parameters and buffers by name."""
        ...


GRAPH: Part[GraphPart] = Part(
    "graph", "cannot lift a model to a graph", "use by='layer', or a model of torch"
)
"""The graph of a model: ``by="graph"``, ``mp.graph``, ``mp.export``."""
