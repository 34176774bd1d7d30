"""A model that runs as its graphs do: one for each kind of call, lifted when it first comes."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope

from mpcore.errors import GraphError
from mpcore_tensorflow.graph_lift import Piece, piece_of
from mpcore_tensorflow.graph_trace import Arguments, Traced, filled, trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.graph.ir import GraphPlan
    from mpcore_tensorflow.graph_build import Built

__all__ = ["Lowered", "Runner"]

_MOST_PIECES = 64  # of one model: shapes, modes


@dataclass
class Lowered:
    """One graph of a model, and what runs it."""

    traced: Traced
    piece: Piece
    built: Built


@dataclass
class Runner:
    """Runs the call of a model by its graphs.

    Attributes:
        model: the model.
        original: its own ``call``.
        lower: makes of a piece what runs in its place.
        met: the graphs that were met, by the kind of call.
        plans: of them; of branches and loops inside, too.
        any_batch: whether the first dimension is left open.
    """

    model: keras.Model
    original: Callable[..., Any]
    lower: Callable[[Piece], Built]
    met: dict[Any, Lowered] = field(default_factory=dict)
    plans: list[GraphPlan] = field(default_factory=list)
    any_batch: bool = False

    def __post_init__(self) -> None:
        """Hold the model weakly: it holds what holds this."""
        self._model = weakref.ref(self.model)
        del self.model

    def lowered(self, arguments: Arguments) -> Lowered:
        """Return the graph for such a call; it is lifted when it first comes."""
        context = global_state.get_global_attribute("current_call_ctx")
        key = arguments.key, getattr(context, "training", None)
        if key not in self.met:
            if len(self.met) >= _MOST_PIECES:
                msg = (
                    f"by='graph' met more than {_MOST_PIECES} kinds of calls of one model; pad "
                    "the batches to fewer shapes, or use by='layer'"
                )
                raise GraphError(msg)
            model = self._model()
            traced = trace(model, self.original, arguments, any_batch=self.any_batch)
            piece = piece_of(model, traced)
            if all(node.target == "Identity" for node in piece.graph.nodes):
                msg = f"nothing of {type(model).__name__} was lifted; use by='layer'"
                raise GraphError(msg)
            self.met[key] = Lowered(traced, piece, self.lower(piece))
        return self.met[key]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph for this call."""
        if in_stateless_scope() or any(map(_symbolic, keras.tree.flatten((args, kwargs)))):
            return self.original(*args, **kwargs)  # shapes are asked for; nothing is computed
        arguments = Arguments(args, kwargs)
        try:
            lowered = self.lowered(arguments)
        except GraphError as exc:
            exc._keras_call_info_injected = True  # type: ignore[attr-defined]  # it says enough
            raise
        return filled(lowered.traced, lowered.built.run(arguments.tensors))


def _symbolic(x: Any) -> bool:
    return isinstance(x, keras.KerasTensor)
