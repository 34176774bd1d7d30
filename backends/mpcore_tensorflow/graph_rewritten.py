"""A Keras model that runs the changed graphs of another one, over the same variables."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras

from mpcore.errors import BackendError, GraphError
from mpcore.graph.clip import CLIP
from mpcore.graph.edit import by_new_names
from mpcore.graph.part import Changed, refuse_rewritten
from mpcore_tensorflow.graph_build import Built
from mpcore_tensorflow.graph_plan import plans_of_words
from mpcore_tensorflow.graph_run import Runner

if TYPE_CHECKING:
    from mpcore.graph.part import Change
    from mpcore.policy.policy import Policy
    from mpcore_tensorflow.graph_lift import Piece

__all__ = ["Rewritten", "check_rewritten", "refuse_parts"]


class Rewritten(keras.Model):  # type: ignore[misc]  # keras is not followed
    """Runs the graphs of ``original``, changed; trains its variables.

    Each kind of call (its shapes, training or not) is lifted and changed when it first comes.
    """

    def __init__(self, original: keras.Model, change: Change) -> None:
        """Take a model, which stays as it is, and what becomes of each of its graphs."""
        clips: list[str] = []
        # Before Keras makes lists of lists.
        self.__dict__.update(clips=clips, scaled=False, change=change)

        def lower(piece: Piece) -> Built:
            made = change(Changed(piece.graph))
            clips.extend(node.name for node in made.graph.nodes if node.target == CLIP)
            if self.scaled:
                refuse_scaled_clips(self)
            tables = (piece.calls, piece.owners)
            calls, owners = (by_new_names(t, piece.graph, made.graph) for t in tables)
            piece = replace(piece, calls=calls, owners=owners)
            return Built(piece, made.graph, plans_of_words(piece, made) if made.words else None)

        runner = Runner(original, original.call, lower)

        @functools.wraps(original.call)
        def call(*args: Any, **kwargs: Any) -> Any:
            return runner(*args, **kwargs)

        # Before Keras looks at it: its arguments (`training`, `mask`) are the original's.
        self.__dict__["call"] = call
        super().__init__(name=f"{original.name}_rewritten")
        self.original = original
        self.built = True

    def get_config(self) -> dict[str, Any]:
        """Raise: a change of a graph is a function, which a file cannot hold."""
        msg = f"{self.name} cannot be saved: save the original's weights, and rewrite it again"
        raise NotImplementedError(msg)


def refuse_parts(model: keras.Model, *, rewritten: bool = False) -> None:
    """Raise GraphError for parts with changed graphs, or the model unless it may be, or states."""
    inside = model.original if rewritten and isinstance(model, Rewritten) else model
    for layer in inside._flatten_layers():
        if isinstance(layer, Rewritten):
            refuse_rewritten(layer.name)
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            msg = (
                f"{layer.name} keeps its state from call to call (stateful=True), which Keras "
                "holds outside of the model's variables: no graph can be proved; hand the state "
                "on as an input and an output (return_state=True), or use by='layer'"
            )
            raise GraphError(msg)


def check_rewritten(model: keras.Model, policy: Policy) -> None:
    """Raise BackendError where a policy would not reach, or would scale, what a graph runs."""
    if policy.scaling.kind != "none":
        refuse_scaled_clips(model)
    made = [layer for layer in model._flatten_layers() if isinstance(layer, Rewritten)]
    if made and policy.compute != "float32":
        msg = (
            "`policy` must be float32 for a rewritten model, whose graph runs no layers, got "
            f"{policy.compute}; let the rewriting lower it: node.to_float, MixedPrecisionHelper"
        )
        raise BackendError(msg)


def refuse_scaled_clips(model: keras.Model) -> None:
    """Raise BackendError where gradients under a loss scale would meet a bound of others.

    A graph that is lifted later is looked at then.
    """
    if not isinstance(model, Rewritten):
        return
    if model.clips:
        msg = (
            f"`policy` must have no loss scale for a model with clipped gradients "
            f"({model.clips[0]}): the bound would meet scaled ones; use bfloat16, or "
            "loss_scale='none'"
        )
        raise BackendError(msg)
    model.__dict__["scaled"] = True
