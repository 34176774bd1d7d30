"""What a backend's graph part does: lift a model, build one of a graph, write one to a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from mpcore.backend.parts import Part
from mpcore.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    import numpy as np
    import numpy.typing as npt

    from mpcore.graph.deciding import Word
    from mpcore.graph.ir import Graph, GraphPlan
    from mpcore.graph.pattern import Chain, Match
    from mpcore.graph.timing import Timed
    from mpcore.policy.policy import Policy

__all__ = [
    "GRAPH",
    "Change",
    "Changed",
    "Exported",
    "GraphPart",
    "Lifted",
    "as_arguments",
    "both",
    "refuse_after_prepare",
    "refuse_rewritten",
    "refuse_source",
]


@dataclass(frozen=True)
class Lifted:
    """A model as graphs: one, or several where Python decides between them.

    Attributes:
        graphs: in the order in which the example ran them.
        model: the model; nothing of it was changed.
        example: what it was lifted with.
        handle: what the backend needs to build a model of it.
    """

    graphs: tuple[Graph, ...]
    model: Any
    example: Any
    handle: Any = field(default=None, repr=False)

    @property
    def graph(self) -> Graph:
        """The graph; the first where there are several."""
        return self.graphs[0]

    def match(self, pattern: Chain) -> tuple[Match, ...]:
        """Return where a pattern fits, in all graphs."""
        from mpcore.graph.pattern import match

        return tuple(found for graph in self.graphs for found in match(pattern, graph))


@dataclass(frozen=True)
class Exported:
    """What was written, and what it was checked by.

    Attributes:
        path: the file.
        plan: where its casts lie.
        difference: the largest from the model in float32, relative to the largest value.
        checks: what was checked, in words.
    """

    path: str
    plan: GraphPlan
    difference: float
    checks: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line a check."""
        return "\n".join([f"{self.path}: {self.plan.summary()}", *self.checks])


@dataclass(frozen=True)
class Changed:
    """A graph that was changed, and what its calls are to run in.

    Attributes:
        graph: the graph.
        words: by the name of the node; the others follow what comes in.
        low: the 16-bit dtype that ``"lower"`` stands for.
    """

    graph: Graph
    words: Mapping[str, Word] = field(default_factory=dict)
    low: str = "float16"


Change: TypeAlias = "Callable[[Changed], Changed]"
"""What becomes of a graph, by rules or by a pass."""


def both(first: Change | None, then: Change) -> Change:
    """Return what makes one change after the other."""
    return then if first is None else lambda found: then(first(found))


def refuse_after_prepare(model: Any) -> NoReturn:
    """Raise GraphError: a model is lifted before it is prepared."""
    msg = (
        f"`model` must be lifted before it is prepared, this {type(model).__name__} was: "
        "amp.graphs has what by='graph' made of it; amp.release() gives it back"
    )
    raise GraphError(msg)


def refuse_source(model: Any, framework: str, policy: Policy, instead: str) -> NoReturn:
    """Raise GraphError: source is written of networks of MindSpore alone."""
    msg = (
        f"no source is written of {type(model).__name__}, a model of {framework}, under {policy}: "
        f"mp.export {instead}"
    )
    raise GraphError(msg)


def refuse_rewritten(name: str) -> NoReturn:
    """Raise GraphError: the graphs of a model, or of a part of it, were changed before."""
    msg = (
        f"the graph of {name} was changed, and is lifted no more: lift, fold and export the "
        "original; rewrite whole models, one change after the other; train it under float32, with "
        "the dtypes that the rewriting gives it (node.to_float, MixedPrecisionHelper)"
    )
    raise GraphError(msg)


def as_arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a model is called with: a tuple or list are its arguments, a dict by name."""
    if isinstance(example, dict):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, (tuple, list)) else ((example,), {})


class GraphPart(Protocol):
    """Lifts, builds and writes models of one framework."""

    def lift(self, model: Any, example: Any, /, *, whole: bool) -> Lifted:
        """Return a model as graphs; building them without casts gives its own bits.

        Args:
            model: the model, in the mode that is meant.
            example: what it is called with.
            whole: whether it must be one graph that can be written to a file.

        Raises:
            GraphError: nothing was lifted, something cannot be, or the bits differ, with the
                first call that does.
        """
        ...

    def plan(self, lifted: Lifted, policy: Policy, /, device: str = "") -> tuple[GraphPlan, ...]:
        """Return the plan of each graph; on the device that the model is on, or another."""
        ...

    def build(self, lifted: Lifted, graph: Graph, arrays: Mapping[str, npt.NDArray[Any]], /) -> Any:
        """Return a new model of a whole graph, with copies of the parameters or ``arrays``."""
        ...

    def changed(self, model: Any, change: Change, example: Any, /) -> Any:
        """Return a model with the parameters of ``model`` whose graphs are changed; it trains.

        With an example of None the first forward pass lifts it. A model that was changed before
        is changed further.
        """
        ...

    def find(self, model: Any, path: str, /) -> Any:
        """Return the layer, parameter or buffer of a dotted path; None where there is none."""
        ...

    def export(
        self, model: Any, path: str | PathLike[str], policy: Policy, example: Any, /
    ) -> Exported:
        """Write a model to a file with a policy baked in; return what was checked."""
        ...

    def source(self, model: Any, policy: Policy, example: Any, /) -> str:
        """Return source in which a policy stands as casts, checked by running it."""
        ...

    def fold(self, model: Any, example: Any, /) -> Any:
        """Return a new model whose batch normalisations are folded into what is before them.

        Raises:
            GraphError: nothing folds; the message says why.
        """
        ...

    def timed(self, model: Any, policy: Policy, example: Any, /) -> tuple[Timed, ...]:
        """Return what each call and cast of each graph takes, each run alone.

        Raises:
            GraphError: this framework's calls are not timed one by one.
        """
        ...

    def arrays(self, lifted: Lifted, /) -> Mapping[str, npt.NDArray[np.float32]]:
        """Return the values of parameters and buffers by name."""
        ...


GRAPH: Part[GraphPart] = Part(
    "graph",
    "cannot lift a model to a graph",
    "use by='layer', or a model of torch, tf.keras or MindSpore",
)
"""The graph of a model: ``by="graph"``, ``mp.graph``, ``mp.export``."""
