"""The guard that puts a model's buffers back when a step is skipped."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record

from mpcore_tensorflow.layers import buffers

__all__ = ["BufferGuard"]


class BufferGuard:
    """Values of a model's buffers as they were before the forward pass of the current step.

    A read shares memory with its variable until that is assigned, so a snapshot copies nothing.
    It is taken at the first training-mode call of a model in each graph that is traced (each
    step, without a graph), never kept over a step: weights loaded in between are safe.
    """

    def __init__(self, model: Any) -> None:
        """List the buffers of a built model."""
        self.variables = buffers(model)
        self._values: list[Any] | None = None
        self._graph: Any = None

    def begin(self) -> list[Any]:
        """Take a snapshot now and return it."""
        self._graph = _current_graph()
        self._values = [tf.convert_to_tensor(variable.value) for variable in self.variables]
        return self._values

    def enter(self) -> None:
        """Take a snapshot unless this step has one: the model's training-mode call begins."""
        if tf.executing_eagerly() and not could_possibly_record():
            return  # nobody differentiates this call, so no step belongs to it
        if self._values is None or self._graph != _current_graph():
            self.begin()

    def take(self) -> list[Any] | None:
        """Return the snapshot of this step, once; None if there was no training-mode call."""
        values, graph = self._values, self._graph
        self._values = self._graph = None
        return values if graph == _current_graph() else None

    def restore(self, values: list[Any]) -> None:
        """Assign ``values`` back."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.value.assign(value)


def _current_graph() -> Any:
    if tf.executing_eagerly():
        return None
    return weakref.ref(tf.compat.v1.get_default_graph())
