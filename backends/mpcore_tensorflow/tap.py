"""What layers and ops of a Keras model do, heard: nothing else replaces the call of a layer.

TensorFlow's op callbacks name each operation, those inside of loops of a graph too; those of the
backward pass carry the name scope of the operation that they are the gradient of. Composites
(attention, recurrent layers) are one layer. What XLA or grappler make of a graph afterwards is
not seen.

Tried with TensorFlow 2.21 and Keras 3.15.1.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from mpcore.errors import BackendError
from mpcore.tools.inspection.dtypes import DtypeCall, floats_of
from mpcore.tools.inspection.recorder import (
    BACKWARD,
    FORWARD,
    CalledLayer,
    OpNames,
    SeenTensor,
)
from mpcore.tools.inspection.trace import neutral_op, widest, words
from mpcore_tensorflow import channels
from mpcore_tensorflow.attributes import attributes
from mpcore_tensorflow.layers import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from mpcore.tools.inspection.recorder import Calls

__all__ = [
    "OPS",
    "TAPE",
    "RanOp",
    "Scopes",
    "Tap",
    "dtype_of",
    "numbers_of",
    "ops_heard",
    "tapped",
]

_PRODUCTS = words(
    "MatMul BatchMatMulV2 BatchMatMulV3 BatchMatMul Einsum Conv1D Conv2D Conv3D "
    "Conv2DBackpropInput Conv2DBackpropFilter Conv3DBackpropInputV2 Conv3DBackpropFilterV2 "
    "DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput "
    "DepthwiseConv2dNativeBackpropFilter CudnnRNNV3 CudnnRNNBackpropV3"
)
_VIEWS = words(
    "ReadVariableOp Reshape Identity IdentityN Transpose Const Shape ShapeN Pack Unpack Slice "
    "StridedSlice Split SplitV Squeeze ExpandDims StopGradient PreventGradient Placeholder NoOp "
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp Fill ZerosLike OnesLike "
    "BroadcastTo Empty Range"
)
_MOVES = _VIEWS | words(
    "Cast StridedSliceGrad ConcatV2 Concat Pad PadV2 Tile "
    "ResourceGather ResourceGatherNd GatherV2 GatherNd Gather While StatelessWhile If StatelessIf "
    "PartitionedCall "
    "StatefulPartitionedCall TensorListReserve TensorListFromTensor TensorListStack "
    "TensorListGetItem TensorListSetItem TensorListPushBack TensorListPopBack "
    "TensorListElementShape EmptyTensorList TensorListLength AccumulateNV2 ReverseV2 "
    "Enter Exit Merge Switch "
    "NextIteration LoopCond SelectV2 Select BroadcastGradientArgs RandomUniform "
    "StatelessRandomUniformV2 StatelessRandomGetKeyCounter MatrixBandPart TensorListResize "
    "TensorListConcatV2 SymbolicGradient DeepCopy"
)
_WRITTEN = {"FusedBatchNormV3": 5}
"""Of these the first outputs are numbers; behind them is memory that nobody wrote."""


_COMPUTED = "_mpcore_computed"
TAPE = "gradient_tape/"
"""What the names of the backward pass begin with."""


def _computed(name: str, came: Sequence[str], went: Sequence[str]) -> str:
    del went
    return came[0] if came and name in _PRODUCTS else widest(came)


OPS = OpNames(
    _PRODUCTS,
    _MOVES,
    _VIEWS,
    partial(neutral_op, "tf"),
    _computed,
    meets=frozenset(("Add", "AddV2", "AddN", "Sum")),
)
_DEAF = [0]  # taps with a lower number hear nothing
_TAPS = [0]  # taps that are open


class RanOp(NamedTuple):
    """An operation that ran or was traced, as TensorFlow's op callbacks tell it.

    Attributes:
        kind: its type.
        inputs: tensors.
        attrs: names and values of its attributes in turn, or None.
        outputs: tensors.
        name: in its graph.
        graph: it was traced into; None where it ran eagerly.
    """

    kind: str
    inputs: Sequence[Any]
    attrs: Sequence[Any] | None
    outputs: Sequence[Any]
    name: str
    graph: Any


@contextlib.contextmanager
def tapped(
    around: Callable[[Any, Callable[..., Any], Any, Any], Any],
    made: Callable[[RanOp], None] | None,
    *,
    alone: bool = False,
) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Hear every call of a layer, and every operation of this thread that runs or is traced.

    Yields what opens a stretch in which operations are not heard: TensorFlow runs them faster.

    Args:
        around: called with a layer, what calls it, and the arguments; returns what that returned.
        made: called with an operation; None to hear layers alone.
        alone: whether taps that are open already hear nothing of this: it is no run of a model.
    """
    original, number = keras.layers.Layer.__call__, _TAPS[0]

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if number < _DEAF[0]:
            return original(layer, *args, **kwargs)
        return around(layer, partial(original, layer), args, kwargs)

    with contextlib.ExitStack() as stack:
        stack.callback(setattr, keras.layers.Layer, "__call__", original)
        keras.layers.Layer.__call__ = call
        _TAPS[0] += 1
        stack.callback(_TAPS.__setitem__, 0, number)
        if alone:
            stack.callback(_DEAF.__setitem__, 0, _DEAF[0])
            _DEAF[0] = number
        if made is not None:

            def heard(op: RanOp) -> None:
                if number >= _DEAF[0]:
                    made(op)

            callback = stack.enter_context(ops_heard(heard))
        yield contextlib.nullcontext if made is None else partial(_unheard, callback)


@contextlib.contextmanager
def ops_heard(made: Callable[[RanOp], None]) -> Iterator[Callable[..., None]]:
    """Hear every operation of this thread that runs or is traced; yield TensorFlow's callback."""

    def callback(
        kind: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        made(RanOp(_text(kind), inputs, attrs, outputs, _text(op_name), graph))

    op_callbacks.add_op_callback(callback)
    try:
        yield callback
    finally:
        op_callbacks.remove_op_callback(callback)


@contextlib.contextmanager
def _unheard(callback: Callable[..., None]) -> Iterator[None]:
    op_callbacks.remove_op_callback(callback)
    try:
        yield
    finally:
        op_callbacks.add_op_callback(callback)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


Owner = TypeVar("Owner")


class Scopes(Generic[Owner]):
    """Whose an operation is, by the name scope that it was made in."""

    def __init__(self) -> None:
        """Know none."""
        self._owners: dict[str, Owner] = {}

    def note(self, name: str, owner: Owner, *, first: bool) -> None:
        """Take the operation ``name``; with ``first`` whoever was there before stays."""
        scope = name.rpartition("/")[0]
        if not first or scope not in self._owners:
            self._owners[scope] = owner

    def owner(self, name: str) -> Owner | None:
        """Return whose an operation is, or that which it is the gradient of."""
        scope = name.removeprefix(TAPE)
        while scope:
            scope = scope.rpartition("/")[0]
            if scope in self._owners:
                return self._owners[scope]
        return None


def dtype_of(tensor: Any) -> str:
    """Return the dtype of a tensor in canonical words."""
    return str(tf.as_dtype(tensor.dtype).base_dtype.name)


class _Seen(SeenTensor):
    """A tensor of TensorFlow that passed by.

    Attributes:
        tensor: eager, or of a graph.
        turn: to the neutral layout, as ``mpcore_tensorflow.channels`` says it.
    """

    def __init__(self, tensor: Any, turn: tuple[int, ...], wanted: list[Any]) -> None:
        super().__init__()
        self.tensor, self.turn, self._wanted = tensor, turn, wanted

    @property
    def dtype(self) -> str:
        return dtype_of(self.tensor)

    def numbers(self) -> npt.NDArray[np.float32]:
        if not hasattr(self.tensor, "numpy"):
            return np.empty(0, np.float32)
        return channels.turned(numbers_of(self.tensor), self.turn)

    def on_gradient(self, take: Callable[[SeenTensor], None]) -> None:
        self._wanted.append((self, take))


class Tap:
    """Tells ``calls`` what the layers and ops of a model do.

    Attributes:
        wanted: (tensor, who takes its gradient), in the order in which they passed by.
        unheard: opens a stretch in which ops are not asked for, such as a backward pass.
    """

    def __init__(self, model: Any, calls: Calls[Any, Any]) -> None:
        self._calls = calls
        self.unheard: Callable[[], contextlib.AbstractContextManager[None]]
        self.unheard = contextlib.nullcontext
        self._entries = {id(entry.layer): entry for entry in walk(model)}
        self.wanted: list[tuple[_Seen, Callable[[SeenTensor], None]]] = []
        # A tensor that one layer hands on and the next takes in is looked at once.
        self._seen: dict[tuple[int, tuple[int, ...]], _Seen] = {}
        self._scopes: Scopes[DtypeCall] = Scopes()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Hear layers and, where they are asked for, ops."""
        request, eager = self._calls.request, tf.config.functions_run_eagerly()
        if not self._calls.values:
            with tapped(self._around, self._traced):
                yield
            return
        tf.config.run_functions_eagerly(True)
        try:
            made = self._ran if request.turns or request.ops else None
            with tapped(self._around, made) as self.unheard:
                yield
        finally:
            self.unheard = contextlib.nullcontext
            tf.config.run_functions_eagerly(eager)

    def _around(self, layer: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        entry, calls = self._entries.get(id(layer)), self._calls
        in_graph = calls.values and entry is not None and not self._hears()
        if entry is None or calls.phase != FORWARD or in_graph:
            return run(*args, **kwargs)
        tensors = self._found((args, kwargs))
        called = CalledLayer(
            str(entry.path),
            type(layer).__name__,
            entry.category,
            partial(attributes, layer, tensors, training=_is_training(layer, kwargs)),
            lambda: tuple(dict.fromkeys(dtype_of(v.value) for v in layer._trainable_variables)),
        )
        calls.enter(called, self._turned(channels.before_layer, layer, entry, tensors))
        outputs: Any = ()
        try:
            outputs = run(*args, **kwargs)
        finally:
            went = self._found(outputs)
            calls.leave(called.path, self._turned(channels.after_layer, layer, entry, went))
        return outputs

    def _hears(self) -> bool:
        """Return whether values of tensors are to be had now."""
        return bool(tf.executing_eagerly())

    def _found(self, value: Any) -> list[Any]:
        """Return the tensors of numbers in ``value``."""
        found = [_read(x) for x in tf.nest.flatten(value) if tf.is_tensor(x)]
        if not self._calls.values:
            return found
        return self._numbers([x for x in found if hasattr(x, "numpy")])

    def _numbers(self, tensors: list[Any]) -> list[Any]:
        if any(x.dtype.is_complex for x in tensors):
            msg = "complex tensors cannot be inspected"
            raise BackendError(msg)
        return [x for x in tensors if x.dtype.is_floating or x.dtype.is_integer or x.dtype.is_bool]

    def _turned(self, turns: Any, layer: Any, entry: Any, tensors: list[Any]) -> list[_Seen]:
        """Return tensors that go in or out of a layer, each with its turn."""
        if not self._calls.values:
            return [_Seen(x, (), self.wanted) for x in tensors]
        found = turns(layer, entry.category, tensors)
        layout = self._calls.request.turns
        return [
            self.seen(x, turn if layout else ()) for x, turn in zip(tensors, found, strict=True)
        ]

    def seen(self, tensor: Any, turn: tuple[int, ...] | None = None) -> _Seen:
        """Return what there is of an eager tensor; turned as its mark says if no turn is given."""
        if turn is None:
            turn = channels.turn_of(tensor) if self._calls.request.turns else ()
        key = id(tensor), turn
        if key not in self._seen:
            self._seen[key] = _Seen(tensor, turn, self.wanted)
        return self._seen[key]

    def _ran(self, op: RanOp) -> None:
        """Take an op that ran eagerly."""
        calls, name = self._calls, op.kind
        if op.graph is not None or calls.phase != FORWARD:
            return
        came = self._found(list(op.inputs))
        went = self._found(list(op.outputs)[: _WRITTEN.get(name)])
        for tensor in went:
            setattr(tensor, _COMPUTED, True)
        channels.after_op(name, op.attrs, list(op.inputs), went)
        if not calls.takes(name) or not any(x.dtype.is_floating for x in (*came, *went)):
            return
        constants = [x for x in (op.attrs or ())[1::2] if isinstance(x, float)]
        constants += [float(str(x.numpy())) for x in came if _is_constant(x)]
        calls.op(name, [self.seen(x) for x in came], [self.seen(x) for x in went], constants)

    def _traced(self, op: RanOp) -> None:
        """Take an op that was traced."""
        calls, kind, name = self._calls, op.kind, op.name
        came, went = ([_Seen(x, (), []) for x in each] for each in (op.inputs, op.outputs))
        dtype = _computed(kind, floats_of(came), ()) if calls.takes(kind) else ""
        if calls.phase == BACKWARD:
            owner = self._scopes.owner(name) if dtype else None
            if owner is not None:
                calls.backward_op(owner, kind, dtype)  # type: ignore[attr-defined]
            return
        if calls.top is not None:
            self._scopes.note(name, calls.top, first=not dtype)
        if dtype:
            calls.op(kind, came, went)


def _is_constant(tensor: Any) -> bool:
    one = tensor.dtype.is_floating and tensor.shape.num_elements() == 1
    return one and not hasattr(tensor, _COMPUTED)


def _is_training(layer: Any, kwargs: dict[str, Any]) -> bool:
    """Return what Keras will take ``training`` to be in this call."""
    found = kwargs.get("training")
    if found is None:
        context = keras.src.backend.common.global_state.get_global_attribute("current_call_ctx")
        found = None if context is None else context.training
    return bool(found) and layer.trainable


def _read(tensor: Any) -> Any:
    """Return the tensor that a weight holds now, in the format of the layer it is given to."""
    value = tensor.value if isinstance(tensor, keras.Variable) else tensor
    return tf.convert_to_tensor(value) if isinstance(value, tf.Variable) else value


def numbers_of(tensor: Any) -> Any:
    """Return the numbers of a tensor as float32."""
    # Not .numpy(), which copies: nobody writes into the memory while an array looks at it.
    return np.asarray(np.asarray(tensor), np.float32)
