"""The guard that puts back what a forward pass has assigned when its step is skipped."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.eager.record import could_possibly_record
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs
from tensorflow.python.ops import stateful_random_ops

from mpcore.errors import BackendError
from mpcore_tensorflow.ascend import EmulatedAscend
from mpcore_tensorflow.layers import buffers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mpcore.numerics.overflow import OverflowDetector

__all__ = ["BufferGuard", "Handle", "Snapshot", "guarded_variables"]

_BEFORE = object()  # stands for the graph of an earlier step


class Handle:
    """A variable that is known by its handle alone, as a graph knows it.

    Attributes:
        handle: an eager tensor.
        dtype: of its values.
        shape: of its values.
    """

    def __init__(self, handle: Any, dtype: tf.DType, shape: Any) -> None:
        """Keep the handle, and so the variable."""
        self.handle, self.dtype, self.shape = handle, dtype, shape

    def assign(self, value: tf.Tensor) -> None:
        """Become ``value``."""
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)


class Snapshot:
    """What a step may have to put back: values as they were when it began.

    A graph that is traced holds a read of every weight; which of them a forward pass assigns is
    seen from the operations that it made, and the other reads are used by nothing.
    """

    def __init__(self, always: Iterable[Any], weights: Iterable[Any]) -> None:
        """Read variables; a read shares memory with its variable until that is assigned."""
        self._graph = _graph()
        self._start = 0 if self._graph is None else len(self._graph.get_operations())
        self._kept = [(stored, _read(stored)) for stored in always]
        self._weights = [(stored, _read(stored)) for stored in weights]
        self.missed: list[Handle] = []

    def keep(self, stored: Any, value: tf.Tensor) -> None:
        """Put ``stored`` back to ``value``, unless an earlier value of it is known."""
        if not any(stored is other for other, _ in self._kept):
            self._kept.append((stored, value))

    def close(self) -> Snapshot:
        """Look what was assigned since the beginning; return this very object.

        ``missed`` holds what was assigned and is not known here.
        """
        if self._graph is None:
            return self
        written = self._written()
        for stored, value in self._weights:
            if written.pop(id(self._graph.capture(stored.handle)), None) is not None:
                self.keep(stored, value)
        for stored, _ in self._kept:
            written.pop(id(self._graph.capture(stored.handle)), None)
        self.missed = [found for found in map(self._outside, written.values()) if found]
        return self

    @property
    def traced(self) -> bool:
        """Whether it was taken while a graph was traced."""
        return self._graph is not None

    def assigned(self) -> list[Any]:
        """Return the variables that are put back."""
        return [stored for stored, _ in self._kept]

    def restore(self) -> None:
        """Assign the values back."""
        for stored, value in self._kept:
            stored.assign(value)

    def _written(self) -> dict[int, Any]:
        """Return the resources that operations since the beginning may write to, by ``id``."""
        found: dict[int, Any] = {}
        for op in self._graph.get_operations()[self._start :]:
            if op.type.startswith("Collective"):
                continue  # what orders the sums over replicas
            _, writes = get_read_write_resource_inputs(op)
            found.update((id(handle), handle) for handle in writes)
        return found

    def _outside(self, handle: Any) -> Handle | None:
        """Return the variable behind a handle of the graph; None for what is no variable."""
        graph = self._graph
        while graph is not None and not hasattr(handle, "numpy"):
            inside = {id(internal): external for external, internal in graph.captures}
            handle = inside.get(id(handle))
            graph = getattr(graph, "outer_graph", None)
        data = getattr(handle, "_handle_data", None)
        if handle is None or data is None or not data.is_set or len(data.shape_and_type) != 1:
            return None
        dtype = tf.as_dtype(data.shape_and_type[0].dtype)
        shape = tf.TensorShape(data.shape_and_type[0].shape)
        return None if dtype in (tf.variant, tf.resource) else Handle(handle, dtype, shape)


class BufferGuard:
    """Values of what a forward pass assigns, as they were before that of the current step.

    Buffers, such as BatchNorm's statistics, are put back always. Of the weights, trained or
    frozen, and of what holds their master values those are that a forward pass has assigned
    (SpectralNormalization writes to its kernel). States of random seeds are left: a skipped step
    need not repeat its random numbers.

    The snapshot is taken at the first training-mode call of a model in each graph that is traced
    (each step, without a graph), never kept over a step: weights loaded in between are safe. Of a
    variable with a copy for each replica every copy is kept.

    Attributes:
        variables: what is put back whether it was seen being assigned or not.
        weights: what is put back if it was.
    """

    def __init__(
        self,
        model: keras.Model,
        others: Iterable[Any] = (),
        detector: OverflowDetector | None = None,
        masters: Iterable[Any] = (),
    ) -> None:
        """List the variables of a built model.

        Args:
            model: the model.
            others: more variables to put back; see ``guarded_variables``.
            detector: is told when a step begins.
            masters: variables that hold master values.
        """
        found = {id(variable): variable for variable in (*buffers(model), *_raw(model), *others)}
        self.variables = list(found.values())
        weights = {id(variable): variable for variable in (*model.weights, *masters)}
        self.weights = [variable for key, variable in weights.items() if key not in found]
        self._model = model
        self._detector = detector
        self._values: Snapshot | None = None
        self._graph: Any = None
        self._scaled: list[Any] = []  # where scale_loss was called last; empty before the first

    def begin(self) -> Snapshot:
        """Begin a step: clear the detector, take a snapshot and return it."""
        if self._detector is not None:
            self._detector.begin()
        eager = tf.executing_eagerly()  # there `forward` looks at the weights
        self._graph = _current_graph()
        self._values = Snapshot(_stored(self.variables), () if eager else _stored(self.weights))
        if self._scaled:
            self._scaled = [_BEFORE]
        return self._values

    def look(self) -> Snapshot:
        """Return the values as they are now, in the middle of a step."""
        if self._values is None:
            return Snapshot(_stored(self.variables), ())
        return Snapshot((), self._values.close().assigned())

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Be in a training-mode call of the model; begin a step unless this one has."""
        eager = tf.executing_eagerly()
        if eager and not could_possibly_record():
            yield  # nobody differentiates this call, so no step belongs to it
            return
        if self._values is None or self._graph != _current_graph():
            self.begin()
        if not eager:
            yield
            return
        before = [(stored, _read(stored)) for stored in _stored(self.weights)]
        try:
            yield
        finally:
            for stored, value in before:
                if self._values is not None and not _same_memory(value, _read(stored)):
                    self._values.keep(stored, value)

    def take(self) -> Snapshot | None:
        """Return the snapshot of this step, once; None if there was no training-mode call."""
        values, graph = self._values, self._graph
        self._values = self._graph = None
        return values if graph == _current_graph() else None

    def abandon(self) -> None:
        """Give up a step that an exception has ended: without a graph its forward pass is undone.

        A graph that was being traced has run nothing.
        """
        values = self.take()
        if values is not None and tf.executing_eagerly() and not values.traced:
            values.restore()

    def scaled(self) -> None:
        """Take note that a loss was scaled here."""
        self._scaled = [_current_graph()]

    def is_scaled(self) -> bool:
        """Return whether the loss of this step was scaled, as far as it can be told.

        Where the model's call is in this very trace, ``scale_loss`` is too; else it may have been
        called in another function that made the gradients.
        """
        graph = _current_graph()
        seen = self._values is not None and self._graph == graph
        return graph in self._scaled if seen else bool(self._scaled)

    def add(self, variables: Iterable[Handle]) -> None:
        """Put these back too, from the next trace on."""
        self.variables += variables

    def unknown(self, snapshot: Snapshot) -> list[Handle]:
        """Return what was assigned and is not known; metrics and random seeds are left alone."""
        left = [*self._model.variables, *self._model.metrics_variables]
        seeds = global_state.get_global_attribute("global_seed_generator")
        left += [] if seeds is None else [seeds.state]
        if stateful_random_ops.global_generator is not None:
            left.append(stateful_random_ops.global_generator.state)
        device = EmulatedAscend.active()
        left += [] if device is None else [device.register]
        handles = {id(stored.handle) for stored in _stored(left)}
        return [found for found in snapshot.missed if id(found.handle) not in handles]


def _stored(variables: Sequence[Any]) -> Iterator[Any]:
    """Return TensorFlow's variables, of several replicas each."""
    for variable in variables:
        # Not `value`: inside of a layer's call that may be a cast.
        stored = variable._value if isinstance(variable, keras.Variable) else variable
        if isinstance(stored, tf.distribute.DistributedValues):
            yield from stored.values
        else:
            yield stored


def _read(stored: Any) -> Any:
    """Read a variable; a tape that is there takes no note of it."""
    return tf.raw_ops.ReadVariableOp(resource=stored.handle, dtype=stored.dtype)


def _same_memory(a: Any, b: Any) -> bool:
    """Return whether two eager reads of a variable are of one buffer, so nobody wrote between."""
    if "CPU" not in a.device.upper():  # a look at the address would copy it to the host
        return bool(tf.reduce_all(tf.equal(a, b)))
    x, y = a._numpy_internal(), b._numpy_internal()
    return bool(x.__array_interface__["data"] == y.__array_interface__["data"])


def _raw(model: keras.Model) -> list[tf.Variable]:
    """Return the variables of TensorFlow that layers hold as attributes, past Keras."""
    return [
        variable
        for layer in model._flatten_layers()
        for value in vars(layer).values()
        for variable in (value.values() if isinstance(value, dict) else [value])
        for variable in (variable if isinstance(variable, list | tuple) else [variable])
        if isinstance(variable, tf.Variable)
    ]


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


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _current_graph() -> Any:
    graph = _graph()
    return None if graph is None else weakref.ref(graph)
