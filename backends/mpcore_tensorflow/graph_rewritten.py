"""A Keras model that runs the changed graphs of another one, over the same variables."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import keras

from mpcore.graph.part import Changed
from mpcore_tensorflow.graph_build import Built
from mpcore_tensorflow.graph_plan import plans_of_words
from mpcore_tensorflow.graph_run import Runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.graph.ir import Graph
    from mpcore_tensorflow.graph_lift import Piece

__all__ = ["Rewritten"]


class Rewritten(keras.Model):  # type: ignore[misc]  # keras is not followed
    """Runs the graphs of ``original``, changed; trains its variables.

    Each kind of call (its shapes, training or not) is lifted and changed when it first comes.
    """

    def __init__(self, original: keras.Model, change: Callable[[Graph], Graph | Changed]) -> None:
        """Take a model, which stays as it is, and what becomes of each of its graphs."""

        def lower(piece: Piece) -> Built:
            made = change(piece.graph)
            if isinstance(made, Changed):
                plans = plans_of_words(piece, made) if made.words else None
                return Built(piece, made.graph, plans)
            return Built(piece, made)

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
