"""The guard that puts a model's buffers back when a step is skipped."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record

from mpcore.errors import BackendError
from mpcore_tensorflow.layers import buffers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mpcore.numerics.overflow import OverflowDetector

__all__ = ["BufferGuard", "guarded_variables"]


class BufferGuard:
    """Values of a model's buffers as they were before the forward pass of the current step.

    A read shares memory with its variable until that is assigned, so a snapshot copies nothing.
    It is taken at the first training-mode call of a model in each graph that is traced (each
    step, without a graph), never kept over a step: weights loaded in between are safe. Of a
    variable with a copy for each replica every copy is kept.

    Attributes:
        variables: what is put back.
    """

    def __init__(
        self,
        model: keras.Model,
        others: Iterable[Any] = (),
        detector: OverflowDetector | None = None,
    ) -> None:
        """List the buffers of a built model.

        Args:
            model: the model.
            others: more variables to put back; see ``guarded_variables``.
            detector: is told when a step begins.
        """
        found = {id(variable): variable for variable in (*buffers(model), *others)}
        self.variables = list(found.values())
        self._detector = detector
        self._values: list[Any] | None = None
        self._graph: Any = None

    def begin(self) -> list[Any]:
        """Begin a step: clear the detector, take a snapshot and return it."""
        if self._detector is not None:
            self._detector.begin()
        self._graph, self._values = _current_graph(), self.look()
        return self._values

    def look(self) -> list[Any]:
        """Return the values as they are now."""
        return [tf.convert_to_tensor(stored) for stored in self._stored()]

    def enter(self) -> None:
        """Begin a step unless this one has: the model's training-mode call begins."""
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
        for stored, value in zip(self._stored(), values, strict=True):
            stored.assign(value)

    def _stored(self) -> Iterator[Any]:
        for variable in self.variables:
            stored = variable.value if isinstance(variable, keras.Variable) else variable
            if isinstance(stored, tf.distribute.DistributedValues):
                yield from stored.values
            else:
                yield stored


def guarded_variables(guard: Any) -> list[Any]:
    """Return the variables of what ``mpcore.prepare(restore_on_skip=...)`` was given.

    Args:
        guard: keras models and layers (all their weights), keras and TensorFlow variables, and
            lists, tuples and dicts of those.

    Raises:
        BackendError: it holds something else.
    """
    if isinstance(guard, keras.layers.Layer):
        return list(guard.weights)
    if isinstance(guard, keras.Variable | tf.Variable):
        return [guard]
    if isinstance(guard, dict):
        return guarded_variables(list(guard.values()))
    if isinstance(guard, list | tuple):
        return [variable for entry in guard for variable in guarded_variables(entry)]
    msg = (
        "`restore_on_skip` must hold keras models, layers or variables, tf.Variables, or lists and "
        f"dicts of them, got {guard!r}"
    )
    raise BackendError(msg)


def _current_graph() -> Any:
    if tf.executing_eagerly():
        return None
    return weakref.ref(tf.compat.v1.get_default_graph())
