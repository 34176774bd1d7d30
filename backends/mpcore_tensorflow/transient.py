"""Float32 values that exist only while an optimizer steps, in the place of a variable."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

import keras
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Stored", "Transient", "close_all", "opened"]


class Stored(Protocol):
    """What lives between steps, in other dtypes, and its float32 values."""

    @property
    def variable(self) -> Any:
        """The Keras variable that an optimizer knows it by."""
        ...

    def open(self) -> Any:
        """Return the float32 values, a tensor."""
        ...

    def close(self, value: tf.Tensor) -> None:
        """Store float32 values."""
        ...


class Transient(tf.Variable):  # type: ignore[misc]  # untyped
    """A float32 variable without memory of its own: opened when first read, stored when closed.

    An optimizer takes it for the variable it stands for: it reads it, assigns to it, scatters
    rows into it. What it is assigned stays a tensor until ``close``, so that a step rounds once.
    But no tensor leaves a branch of a ``tf.cond`` or the body of a loop: what is assigned there
    is stored there, and read again outside.
    """

    def __init__(self, stored: Stored) -> None:
        """Stand for ``stored``, in the graph that is being traced (or in eager code)."""
        self._stored = stored
        self._under: Any = stored.variable._value
        self._home = _graph()
        self._values: dict[Any, Any] = {}  # by graph; none for the home's means: read again
        self._changed = False

    def value(self) -> Any:
        """Return the float32 values as they are at this point."""
        graph = _graph()
        for place in _enclosing(graph):
            if place in self._values:
                return self._values[place]
        self._values[graph] = self._stored.open()
        return self._values[graph]

    def close(self) -> None:
        """Store what was assigned, if anything was."""
        if self._changed:
            self._stored.close(self._values[self._home])
            self._changed = False

    def assign(self, value: tf.Tensor, *_: object, **__: object) -> Any:
        """Become ``value``."""
        value, graph = tf.cast(value, tf.float32), _graph()
        if graph == self._home:
            self._values[graph], self._changed = value, True
            return self
        if self._changed:  # the other branch must find it stored
            with contextlib.nullcontext() if self._home is None else self._home.as_default():
                self.close()
        self._stored.close(value)
        for place in list(_enclosing(graph)):
            self._values.pop(place, None)
        self._values[graph] = value
        return self

    def assign_add(self, delta: tf.Tensor, *_: object, **__: object) -> Any:
        """Add ``delta``."""
        return self.assign(self.value() + tf.cast(delta, tf.float32))

    def assign_sub(self, delta: tf.Tensor, *_: object, **__: object) -> Any:
        """Subtract ``delta``."""
        return self.assign(self.value() - tf.cast(delta, tf.float32))

    def scatter_update(self, sparse_delta: tf.IndexedSlices, *_: object, **__: object) -> Any:
        """Replace rows."""
        return self._scatter(tf.tensor_scatter_nd_update, sparse_delta)

    def scatter_add(self, sparse_delta: tf.IndexedSlices, *_: object, **__: object) -> Any:
        """Add to rows."""
        return self._scatter(tf.tensor_scatter_nd_add, sparse_delta)

    def scatter_sub(self, sparse_delta: tf.IndexedSlices, *_: object, **__: object) -> Any:
        """Subtract from rows."""
        return self._scatter(tf.tensor_scatter_nd_sub, sparse_delta)

    def _scatter(self, operation: Callable[..., tf.Tensor], rows: tf.IndexedSlices) -> Any:
        return self.assign(operation(self.value(), rows.indices[:, None], rows.values))

    def read_value(self) -> Any:
        """Return the values."""
        return self.value()

    def numpy(self) -> Any:
        """Return the values; not in a graph."""
        return self.value().numpy()

    @property
    def dtype(self) -> Any:
        """float32."""
        return tf.float32

    @property
    def shape(self) -> Any:
        """Shape of the variable."""
        return self._under.shape

    @property
    def name(self) -> str:
        """Name of the variable, which patterns of weight decay look at."""
        return str(self._under.name)

    @property
    def device(self) -> str:
        """Device of the variable."""
        return str(self._under.device)

    @property
    def trainable(self) -> bool:
        """Whether the variable is trained."""
        return bool(self._under.trainable)

    @property
    def handle(self) -> Any:
        """Handle of the variable, for the place of operations."""
        return self._under.handle

    @property
    def _unique_id(self) -> str:
        return str(self._under._unique_id)

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> Any:
        """Convert to a tensor, as TensorFlow's operations do."""
        return tf.convert_to_tensor(self.value(), dtype=dtype, name=name)

    def __repr__(self) -> str:
        """Return whose values they are."""
        return f"<Transient of {self.name}>"


@contextlib.contextmanager
def opened(stored: Iterable[Stored]) -> Iterator[None]:
    """Let Keras variables be float32 ones inside the block; store what became of them after it.

    After an exception nothing more is stored.
    """
    replaced = [(one, one.variable, one.variable._value, one.variable._dtype) for one in stored]
    try:
        for one, variable, _, _ in replaced:
            variable._value, variable._dtype = Transient(one), "float32"
        yield
        transients = [variable._value for _, variable, _, _ in replaced]
    finally:
        for _, variable, value, dtype in replaced:
            variable._value, variable._dtype = value, dtype
    for transient in transients:
        transient.close()


def close_all(stored: Iterable[Stored]) -> None:
    """Let Keras variables be the stored ones again, where an exception left them open."""
    for one in stored:
        variable = one.variable
        if isinstance(variable._value, Transient):
            variable._value = variable._value._under
            variable._dtype = keras.backend.standardize_dtype(variable._value.dtype)


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _enclosing(graph: tf.Graph | None) -> Iterator[Any]:
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)
    yield None
