"""An emulated Ascend device in saturation mode, for tests without one."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from mpcore.numerics.dtypes import FORMATS
from mpcore.numerics.overflow import OverflowDetector, saturate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

__all__ = ["EmulatedAscend", "emulated_ascend", "unsaturated"]

_DTYPES = ("float16", "bfloat16", "float32")
# What only loads memory computes nothing; what runs other operations is done when they are.
_NOT_COMPUTED = (
    *("Const", "Placeholder", "ReadVariableOp", "VarHandleOp", "Identity", "IdentityN"),
    *("If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase", "PartitionedCall"),
    *("StatefulPartitionedCall", "RemoteCall", "SymbolicGradient", "Merge", "Switch"),
)
_FUNCTION = "__"  # how the names of compiled functions begin
_RESERVED = ("FusedBatchNormV3", 5)  # an output that nothing writes on a CPU


class _Active(threading.local):
    """The devices that are being emulated on this thread, and whether one is switched off."""

    def __init__(self) -> None:
        self.devices: list[EmulatedAscend] = []
        self.off = False


_active = _Active()


class EmulatedAscend:
    """Stores numbers as a saturating device does, and remembers that it had to.

    Each floating-point output of each operation is stored by the rule of
    ``mpcore.numerics.overflow.saturate``, in its own dtype, forward and backward, eagerly and in
    what is
    traced meanwhile. The backward pass of an operation that saturated is its usual one. Inside
    the backward pass of a ``tf.while_loop`` or ``tf.cond`` nothing is stored: an inf made there
    is stored, and noticed, where it leaves them. For CPUs.

    Attributes:
        detector: reads and clears the status register.
    """

    def __init__(self) -> None:
        with tf.init_scope():
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False, name="overflows")
        self.detector = _Register(self)

    @property
    def register(self) -> tf.Variable:
        """What holds the status register."""
        return self._count

    @classmethod
    def active(cls) -> EmulatedAscend | None:
        """Return the device that is being emulated on this thread, if any."""
        return _active.devices[-1] if _active.devices else None

    @property
    def overflowed(self) -> bool:
        """The status register: sticky, cleared only by ``clear``."""
        return bool(self._count.numpy() > 0)

    def raise_flag(self) -> None:
        """Set the status register, as any overflow on the device does."""
        self._count.assign_add(1)

    def clear(self) -> None:
        """Clear the status register."""
        self._count.assign(0)

    def unflagged(self) -> Any:
        """Return whether the register is clear, as a 0-d bool on the device."""
        return tf.equal(self._count.read_value(), 0)

    def store(self, tensor: tf.Tensor) -> Any:
        """Return what the device stores for a tensor of a graph."""
        top = tf.constant(FORMATS[tensor.dtype.name].max, tensor.dtype)
        number = tf.where(tf.math.is_nan(tensor), tf.zeros_like(tensor), tensor)
        kept = tf.clip_by_value(number, -top, top)
        changed = tf.reduce_any(tf.not_equal(kept, tensor))
        self._count.assign_add(tf.cast(changed, tf.int64))
        return kept

    def store_in_place(self, tensor: tf.Tensor, inputs: tuple[Any, ...]) -> None:
        """Store an eager tensor; one that shares its memory with an input only hands it on."""
        array = _memory(tensor)
        if any(array.ctypes.data == _memory(x).ctypes.data for x in inputs if _is_float(x)):
            return
        kept, overflowed = saturate(array, tensor.dtype.name)
        if overflowed:
            array[...] = kept.astype(array.dtype)
            self.raise_flag()


class _Register(OverflowDetector):
    """The status register of an emulated device."""

    kind, mode, localises = "status_register", "saturation", False

    def __init__(self, device: EmulatedAscend) -> None:
        self._device = device

    def begin(self) -> None:
        self._device.clear()

    def read(self, grads: Sequence[tf.Tensor]) -> Any:
        del grads  # in a graph too it is read after all that was traced before
        return self._device.unflagged()

    def reduce(self, each: tuple[Any, ...], unflagged: tf.Tensor) -> tuple[Any, ...]:
        verdicts = [tf.logical_and(verdict, unflagged) for verdict in each]
        return tuple(verdicts)

    def clear(self) -> None:
        self._device.clear()


@contextlib.contextmanager
def emulated_ascend() -> Iterator[EmulatedAscend]:
    """Let every operation of this thread saturate inside the block.

    Prepare the model and take its first step inside it: what is compiled before or after does
    not saturate. With ``detector="auto"`` an overflow is read from the emulated status register;
    with ``"values"`` it is not, and goes unseen.
    """
    device = EmulatedAscend()
    _active.devices.append(device)
    op_callbacks.add_op_callback(_store_outputs)
    try:
        yield device
    finally:
        _active.devices.remove(device)
        op_callbacks.remove_op_callback(_store_outputs)


@contextlib.contextmanager
def unsaturated() -> Iterator[None]:
    """Let the operations inside the block be, such as those that judge the gradients."""
    before, _active.off = _active.off, True
    try:
        yield
    finally:
        _active.off = before


def _store_outputs(
    op_type: bytes | str,
    inputs: tuple[Any, ...],
    attrs: object,
    outputs: Sequence[tf.Tensor],
    op_name: str | None = None,
    graph: tf.Graph | None = None,
) -> Any:
    del attrs, op_name
    device = EmulatedAscend.active()
    name = op_type.decode() if isinstance(op_type, bytes) else str(op_type)
    if device is None or _active.off or name in _NOT_COMPUTED or name.startswith(_FUNCTION):
        return None
    floating = [_is_float(x) and (name, place) != _RESERVED for place, x in enumerate(outputs)]
    if graph is not None:
        if _is_closed(graph):
            return None
        pairs = zip(outputs, floating, strict=True)
        return [_stored(device, x) if is_float else x for x, is_float in pairs]
    for tensor, is_float in zip(outputs, floating, strict=True):
        if is_float:
            device.store_in_place(tensor, inputs)
    return None


def _is_closed(graph: tf.Graph | None) -> bool:
    # TensorFlow lets no variable of ours into these.
    while graph is not None:
        if type(graph).__name__ in ("_WhileBodyGradFuncGraph", "_CondGradFuncGraph"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _stored(device: EmulatedAscend, tensor: tf.Tensor) -> Any:
    def store(x: tf.Tensor) -> Any:
        return device.store(x), lambda upstream: upstream

    return tf.custom_gradient(store)(tensor)


def _is_float(x: tf.Tensor) -> bool:
    return tf.is_tensor(x) and x.dtype.name in _DTYPES


def _memory(tensor: tf.Tensor) -> npt.NDArray[Any]:
    """Return the numbers of an eager tensor where they lie, shape (elements,)."""
    with unsaturated():  # this operation too is followed by a call of _store_outputs
        flat = tf.reshape(tensor, (-1,))
    memory: npt.NDArray[Any] = flat._numpy_internal()  # a scalar of rank 0 would be a copy
    return memory
