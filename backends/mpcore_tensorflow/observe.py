"""Which dtypes a Keras model runs in: every operation of a traced graph, by layer.

The loss function and its gradients are traced as ``tf.function`` would, and the graph is thrown
away: nothing runs, so nothing can change. TensorFlow's op callbacks name each operation as it is
made, those inside of loops too; those of the backward pass carry the name scope of the operation
that they are the gradient of. What XLA or grappler make of a graph afterwards is not seen.

Tried with TensorFlow 2.21 and Keras 3.15.1.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from mpcore.errors import BackendError, PolicyError
from mpcore.numerics import ops
from mpcore.tools.inspection.trace import Call, LayerTrace, OpCall, Trace, widest, words
from mpcore_tensorflow.layers import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.amp.amp import Amp

__all__ = ["mean_loss", "trace"]

_PRODUCTS = words(
    "MatMul BatchMatMulV2 BatchMatMulV3 BatchMatMul Einsum Conv1D Conv2D Conv3D "
    "Conv2DBackpropInput Conv2DBackpropFilter Conv3DBackpropInputV2 Conv3DBackpropFilterV2 "
    "DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput "
    "DepthwiseConv2dNativeBackpropFilter CudnnRNNV3 CudnnRNNBackpropV3"
)
_MOVES = words(
    "Cast ReadVariableOp Reshape Identity IdentityN Transpose Const Shape ShapeN Pack Unpack "
    "StridedSlice StridedSliceGrad Slice ConcatV2 Concat Split SplitV Squeeze ExpandDims Fill "
    "ZerosLike OnesLike Pad PadV2 Tile StopGradient PreventGradient BroadcastTo Placeholder "
    "ResourceGather ResourceGatherNd GatherV2 GatherNd Gather While StatelessWhile If StatelessIf "
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp PartitionedCall "
    "StatefulPartitionedCall TensorListReserve TensorListFromTensor TensorListStack "
    "TensorListGetItem TensorListSetItem TensorListPushBack TensorListPopBack "
    "TensorListElementShape EmptyTensorList TensorListLength AccumulateNV2 ReverseV2 "
    "NoOp Enter Exit Merge Switch "
    "NextIteration LoopCond SelectV2 Select BroadcastGradientArgs RandomUniform "
    "StatelessRandomUniformV2 StatelessRandomGetKeyCounter MatrixBandPart TensorListResize "
    "TensorListConcatV2 SymbolicGradient Empty DeepCopy Range"
)
"""Operations that move or make values and compute nothing."""

_MEETS = ("Add", "AddV2", "AddN", "Sum")
"""Operations of the backward pass in which gradients from several places are added."""

_TAPE = "gradient_tape/"


def trace(model: Any, amp: Amp | None, batch: tuple[Any, ...], loss_fn: Any) -> Trace:
    """Trace one forward and backward pass, and return its dtypes; see ``inspection.observe``."""
    functions = (
        list(loss_fn.values()) if isinstance(loss_fn, dict) else [loss_fn or mean_loss(model)]
    )
    given = tuple(_spec(x) for x in batch)
    recorder = _Recorder(model)

    def run(*tensors: Any) -> None:
        for function in functions:
            _differentiate(recorder, model, function, tensors)

    with _watched(recorder):
        tf.function(run, autograph=False).get_concrete_function(*given)
    for optimizer in amp.optimizers.values() if amp is not None else ():
        optimizer.guard.take()  # what it noted belongs to the graph that is gone
    return Trace(
        {path: LayerTrace(tuple(v.call() for v in found)) for path, found in recorder.calls()},
        recorder.op_calls(),
        {f"batch[{i}]": peak for i, x in enumerate(batch) if (peak := _whole(x))},
        how="a traced graph, every operation; what compilers make of it is not seen",
    )


def _spec(value: Any) -> Any:
    array = value if tf.is_tensor(value) else np.asarray(value)
    dtype = tf.float32 if array.dtype == np.float64 else array.dtype
    return tf.TensorSpec(array.shape, dtype)


def _whole(value: Any) -> float:
    """Return the largest absolute value of a float32 array of whole numbers; else 0."""
    array = value.numpy() if tf.is_tensor(value) else np.asarray(value)
    if array.dtype not in (np.float32, np.float64) or not array.size:
        return 0.0
    whole = np.isfinite(array).all() and (array == np.round(array)).all()
    return float(np.abs(array).max()) if whole else 0.0


def mean_loss(model: Any) -> Callable[..., Any]:
    """Return a loss that is the mean of the model's floats, each in float32."""

    def loss(*batch: Any) -> Any:
        outputs = keras.tree.flatten(model(*batch, training=True))
        floats = [x for x in outputs if keras.backend.is_float_dtype(x.dtype)]
        return tf.add_n([tf.reduce_mean(tf.cast(x, tf.float32)) for x in floats])

    return loss


def _differentiate(recorder: _Recorder, model: Any, function: Any, tensors: Any) -> None:
    first = len(recorder.visits)
    with tf.GradientTape() as tape:
        tape.watch([x for x in tensors if x.dtype.is_floating])
        loss = function(*tensors)
    if not tf.is_tensor(loss) or not loss.dtype.is_floating or loss.shape.num_elements() != 1:
        msg = f"`loss_fn` must return one number, got {loss!r:.80}"
        raise BackendError(msg)
    visits = [visit for visit in recorder.visits[first:] if visit.graph is loss.graph]
    sources = {
        "weights": [v.value for v in model.trainable_variables],
        "came": [[x for x in v.inputs if x.graph is loss.graph] for v in visits],
        "went": [v.outputs for v in visits],
    }
    recorder.forward = False
    grads = tape.gradient(loss, sources)
    recorder.forward = True
    for visit, came, went in zip(visits, grads["came"], grads["went"], strict=True):
        visit.grad_came, visit.grad_went = dtypes_of(went), dtypes_of(came)


def dtypes_of(value: Any) -> tuple[str, ...]:
    """Return the distinct dtypes of the float tensors in ``value``, in order of appearance."""
    found = [x for x in tf.nest.flatten(value) if hasattr(x, "dtype")]
    names = (str(keras.backend.standardize_dtype(x.dtype)) for x in found if _known(x.dtype))
    return tuple(dict.fromkeys(name for name in names if name in _FLOATS))


_FLOATS = ("float16", "bfloat16", "float32", "float64")


def _known(dtype: Any) -> bool:
    return tf.as_dtype(dtype).base_dtype not in (tf.resource, tf.variant, tf.string)


class _Visit:
    """One call of one layer."""

    def __init__(self, path: str, layer: Any, given: Any) -> None:
        tensors = [x for x in tf.nest.flatten(given) if tf.is_tensor(x)]
        self.path, self.graph = path, tf.compat.v1.get_default_graph()
        self.inputs = [x for x in tensors if x.dtype.is_floating]
        self.outputs: list[Any] = []
        self.params = dtypes_of([v.value for v in layer._trainable_variables])
        self.products: dict[str, None] = {}
        self.others: dict[str, None] = {}
        self.grad_products: dict[str, None] = {}
        self.grad_others: dict[str, None] = {}
        self.grad_came: tuple[str, ...] = ()
        self.grad_went: tuple[str, ...] = ()

    def add(self, kind: str, dtype: str, *, forward: bool) -> None:
        """Take the dtype of one operation."""
        if forward:
            (self.products if kind in _PRODUCTS else self.others)[dtype] = None
        elif kind not in _MEETS:
            (self.grad_products if kind in _PRODUCTS else self.grad_others)[dtype] = None

    def call(self) -> Call:
        """Return what was seen."""
        return Call(
            dtypes_of(self.inputs),
            self.params,
            tuple(self.products or self.others),
            dtypes_of(self.outputs),
            self.grad_came,
            tuple(self.grad_products or self.grad_others),
            self.grad_went,
        )


class _Recorder:
    """What is traced.

    Attributes:
        visits: layer calls, in the order they began.
        forward: whether the forward pass is traced.
    """

    def __init__(self, model: Any) -> None:
        entries = list(walk(model))
        self.paths = {id(entry.layer): entry.path for entry in entries}
        self.containers = {entry.path for entry in entries if entry.category == "container"}
        self.visits: list[_Visit] = []
        self.forward = True
        self._stack: list[_Visit] = []
        self._scopes: dict[str, _Visit] = {}
        self._ops: dict[OpCall, int] = {}

    @contextlib.contextmanager
    def visit(self, layer: Any, given: Any) -> Iterator[_Visit | None]:
        """Be inside a call of ``layer``."""
        path = self.paths.get(id(layer))
        if path is None or not self.forward:
            yield None
            return
        self.visits.append(_Visit(path, layer, given))
        self._stack.append(self.visits[-1])
        try:
            yield self.visits[-1]
        finally:
            self._stack.pop()

    def made(
        self,
        kind: Any,
        inputs: Any,
        attrs: Any,
        outputs: Any,
        op_name: Any = None,
        graph: Any = None,
    ) -> None:
        """Take one operation, as TensorFlow's op callbacks tell it."""
        del attrs, graph
        kind, name = _text(kind), _text(op_name)
        came = dtypes_of(list(inputs))
        if not came or kind in _MOVES:
            if self.forward and self._stack:
                self._scopes.setdefault(name.rpartition("/")[0], self._stack[-1])
            return
        dtype = came[0] if kind in _PRODUCTS else widest(came)
        if not self.forward:
            visit = self._made_by(name)
            if visit is not None:
                visit.add(kind, dtype, forward=False)
            return
        visit = self._stack[-1] if self._stack else None
        if visit is not None:
            self._scopes[name.rpartition("/")[0]] = visit
            visit.add(kind, dtype, forward=True)
        if visit is None or visit.path in self.containers:
            where = "(loss)" if visit is None else visit.path
            seen = OpCall(where, kind, _neutral(kind), came, (dtype,), dtypes_of(list(outputs)))
            self._ops[seen] = self._ops.get(seen, 0) + 1

    def _made_by(self, name: str) -> _Visit | None:
        """Return the call that an operation of the backward pass is the gradient of."""
        scope = name.removeprefix(_TAPE)
        while scope:
            scope = scope.rpartition("/")[0]
            if scope in self._scopes:
                return self._scopes[scope]
        return None

    def calls(self) -> list[tuple[str, list[_Visit]]]:
        """Return the calls by layer."""
        found: dict[str, list[_Visit]] = {}
        for visit in self.visits:
            found.setdefault(visit.path, []).append(visit)
        return list(found.items())

    def op_calls(self) -> tuple[OpCall, ...]:
        """Return the operations outside of layers, each once with its count."""
        return tuple(replace(call, count=count) for call, count in self._ops.items())


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _neutral(kind: str) -> str:
    try:
        return ops.find("tf", kind).name
    except PolicyError:
        return ""  # the table has no such op


@contextlib.contextmanager
def _watched(recorder: _Recorder) -> Iterator[None]:
    """Record layer calls and operations of this thread."""
    original = keras.layers.Layer.__call__

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        with recorder.visit(layer, (args, kwargs)) as visit:
            outputs = original(layer, *args, **kwargs)
            if visit is not None:
                tensors = (x for x in tf.nest.flatten(outputs) if tf.is_tensor(x))
                visit.outputs = [x for x in tensors if x.dtype.is_floating]
            return outputs

    keras.layers.Layer.__call__ = call
    op_callbacks.add_op_callback(recorder.made)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(recorder.made)
        keras.layers.Layer.__call__ = original
