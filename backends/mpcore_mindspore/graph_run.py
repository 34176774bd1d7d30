"""A network that runs as its graphs do: one for each kind of call, lifted when it first comes."""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpcore.errors import GraphError
from mpcore_mindspore.graph_lift import piece_of
from mpcore_mindspore.graph_plan import plan_of
from mpcore_mindspore.graph_source import cell_of, source_of
from mpcore_mindspore.graph_trace import Arguments, flags_of, frozen_in, trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mindspore import nn

    from mpcore.graph.ir import Graph, GraphPlan
    from mpcore.policy.layer import Layer
    from mpcore.policy.policy import Policy
    from mpcore_mindspore.graph_lift import Piece

__all__ = ["Lowered", "Lowering", "Runner", "own_construct"]

_MOST_PIECES = 64  # of one network: shapes, modes


@dataclass
class Lowered:
    """One graph of a network, and what runs it."""

    piece: Piece
    plan: GraphPlan | None
    text: str
    cell: Any
    changed: Graph | None = None

    @property
    def graph(self) -> Graph:
        """The graph that runs: the piece's own, or one that was made of it."""
        return self.changed or self.piece.graph


@dataclass
class Lowering:
    """Makes of each piece what runs in its place.

    Attributes:
        policy: what is lowered; None for nothing.
        layers: the network's layers.
        plans: of every graph so far.
    """

    policy: Policy | None
    layers: Sequence[Layer]
    plans: list[GraphPlan] = field(default_factory=list)

    def __call__(self, piece: Piece) -> Lowered:
        """Return what runs."""
        plan = None
        if self.policy is not None:
            plan = plan_of(piece, self.policy, self.layers, output=self.policy.output)
            self.plans.append(plan)
        text = source_of(piece, None, plan)
        return Lowered(piece, plan, text, cell_of(text, piece.params))


class Runner:
    """Runs the ``construct`` of a network by its graphs.

    Attributes:
        lower: makes of a piece what runs in its place.
        met: the graphs that were met, by the kind of call.
    """

    def __init__(self, net: nn.Cell, lower: Any) -> None:
        """Hold the network weakly: it holds what holds this."""
        self._net = weakref.ref(net)
        self.lower = lower
        self.met: dict[Any, Lowered] = {}

    @property
    def network(self) -> Any:
        """The network whose calls these are."""
        return self._net()

    def key(self, arguments: Arguments) -> Any:
        """Return what calls have in common that one graph can run."""
        net = self._net()
        return arguments.key, flags_of(net), frozen_in(net)

    def lowered(self, arguments: Arguments) -> Lowered:
        """Return the graph for such a call; it is lifted when it first comes.

        Raises:
            GraphError: it cannot be lifted.
        """
        net = self._net()
        key = self.key(arguments)
        if key not in self.met:
            if len(self.met) >= _MOST_PIECES:
                msg = (
                    f"by='graph' met more than {_MOST_PIECES} kinds of calls of one network; pad "
                    "the batches to fewer shapes, or use by='layer'"
                )
                raise GraphError(msg)
            with own_construct(net):
                piece = piece_of(net, trace(net, arguments))
            if not piece.graph.nodes:
                msg = f"nothing of {type(net).__name__} was lifted; use by='layer'"
                raise GraphError(msg)
            self.met[key] = self.lower(piece)
        return self.met[key]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph for this call."""
        arguments = Arguments(self._net(), args, kwargs)
        return self.lowered(arguments).cell(*arguments.values)


@contextlib.contextmanager
def own_construct(net: nn.Cell) -> Iterator[None]:
    """Let a network that runs by its graphs be what it was for a while."""
    ours = vars(net).get("construct")
    if not hasattr(getattr(ours, "__func__", None), "by_graph"):
        yield
        return
    del vars(net)["construct"]
    try:
        yield
    finally:
        vars(net)["construct"] = ours
