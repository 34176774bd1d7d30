"""What every layer of a Keras model makes of a batch, forward and backward, as sketches.

The loss function runs eagerly, under a tape that also differentiates for what layers took in and
handed on; functions of ``tf.function`` run eagerly too. Ops inside of a layer are told by
TensorFlow's op callbacks. Composites (attention, recurrent layers) are one layer.

Tried with TensorFlow 2.21 and Keras 3.15.1.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from mpcore.errors import BackendError
from mpcore.tools.inspection import Inspection, Request, Sketch, sketch
from mpcore.tools.inspection.calls import Visit, Visits
from mpcore.tools.inspection.trace import words
from mpcore_tensorflow import channels
from mpcore_tensorflow.attributes import attributes
from mpcore_tensorflow.layers import variable_names, walk
from mpcore_tensorflow.observe import mean_loss
from mpcore_tensorflow.snapshot import left_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.amp.amp import Amp

__all__ = ["inspect"]

_VIEWS = words(
    "ReadVariableOp Reshape Identity IdentityN Transpose Const Shape ShapeN Pack Unpack Slice "
    "StridedSlice Split SplitV Squeeze ExpandDims StopGradient PreventGradient Placeholder NoOp "
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp Fill ZerosLike OnesLike "
    "BroadcastTo Empty Range"
)
"""Ops that change no value, or make one from nothing."""

_WRITTEN = {"FusedBatchNormV3": 5}
"""Of these the first outputs are numbers; behind them is memory that nobody wrote."""

_COMPUTED = "_mpcore_computed"


def inspect(
    model: Any, amp: Amp | None, batch: tuple[Any, ...], loss_fn: Any, request: Request
) -> Inspection:
    """Run one batch and return what every layer did; see ``mpcore.tools.inspection.Inspector``."""
    losses = _losses(model, amp, loss_fn)
    scale = request.scale or (1.0 if amp is None else float(amp.scale))
    batch = tuple(_tensor(x) for x in batch)
    recorder = _Recorder(model, request)
    if request.layout:
        for tensor in filter(tf.is_tensor, batch):
            channels.mark_image(tensor)
    with left_alone(model, amp), _watched(recorder):
        total = sum(_run(recorder, function, own, batch, scale) for function, own in losses)
    return Inspection(
        float(total),
        scale,
        recorder.visits.calls(),
        tuple(recorder.sketch(x) for x in batch if tf.is_tensor(x)),
        _gradients(model, recorder) if request.backward else {},
        how="one batch, eagerly; gradients by a tape, ops by callbacks",
    )


def _losses(model: Any, amp: Any, loss_fn: Any) -> list[tuple[Callable[..., Any], list[Any]]]:
    """Return every loss function, and the variables that it is differentiated for."""
    trained = list(model.trainable_variables)
    if amp is None:
        functions = loss_fn.values() if isinstance(loss_fn, dict) else [loss_fn]
        return [(function or mean_loss(model), trained) for function in functions]
    amp._check_prepared()
    if amp._strategy is not None:
        msg = (
            "a model on several replicas cannot be inspected: make and prepare it without the "
            "strategy, with the same weights"
        )
        raise BackendError(msg)
    if isinstance(loss_fn, dict):
        return [(function, amp._weights(name)) for name, function in loss_fn.items()]
    return [(loss_fn or mean_loss(model), [v for n in amp.optimizers for v in amp._weights(n)])]


def _tensor(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return tf.constant(value, np.float32 if value.dtype == np.float64 else value.dtype)
    return tf.identity(value) if tf.is_tensor(value) else value  # to be marked


def _run(
    recorder: _Recorder, function: Any, trained: list[Any], batch: tuple[Any, ...], scale: float
) -> np.float32:
    """Run one loss forward and backward; return it, in float32 as a step adds it up."""
    first = len(recorder.seen)
    with tf.GradientTape() as tape, recorder.forward():
        loss = function(*batch)
        if not tf.is_tensor(loss) or loss.shape.num_elements() != 1 or not loss.dtype.is_floating:
            msg = f"`loss_fn` must return one number, got {loss!r:.80}"
            raise BackendError(msg)
        loss = tf.reshape(tf.cast(loss, tf.float32), ())
        scaled = loss if scale == 1.0 else loss * scale
    if recorder.visits.request.backward:
        seen = recorder.seen[first:]
        tensors = [one.tensor for one in seen]
        grads, found = tape.gradient(scaled, [[v.value for v in trained], tensors])
        for variable, grad in zip(trained, grads, strict=True):
            recorder.grads.setdefault(id(variable), []).append(grad)
        for one, grad in zip(seen, found, strict=True):
            if grad is not None:
                one.into[one.place] = recorder.sketch(grad, one.turn, keep=one.keep)
    return np.float32(loss.numpy())


def _gradients(model: Any, recorder: _Recorder) -> dict[str, Sketch | None]:
    names = variable_names(model)
    found: dict[str, Sketch | None] = {}
    for variable in model.trainable_variables:
        each = [_dense(g) for g in recorder.grads.get(id(variable), []) if g is not None]
        dtype = each[0][1] if each else ""
        total = sum(values for values, _ in each)
        found[names[id(variable)]] = sketch(np.asarray(total), dtype) if each else None
    return found


def _dense(grad: Any) -> tuple[Any, str]:
    """Return a gradient as float32 numbers, and its dtype."""
    if not isinstance(grad, tf.IndexedSlices):
        return _numbers(grad), grad.dtype.name
    whole = np.zeros(tuple(grad.dense_shape.numpy()), np.float32)
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # gradients may be out of range: that is told
        np.add.at(whole, grad.indices.numpy(), _numbers(grad.values))
    return whole, grad.values.dtype.name


def _numbers(tensor: Any) -> Any:
    return np.asarray(tensor.numpy(), np.float32)


class _Seen(NamedTuple):
    """A tensor that is differentiated for, and where its gradient goes."""

    tensor: Any
    into: dict[int, Sketch]
    place: int
    turn: tuple[int, ...]
    keep: bool


class _Recorder:
    """What happens in one forward and backward pass.

    Attributes:
        visits: the calls.
        seen: the float tensors that went in and out of layers.
        grads: of the variables, by ``id``, one from each loss.
    """

    def __init__(self, model: Any, request: Request) -> None:
        self.visits = Visits(request)
        self.seen: list[_Seen] = []
        self.grads: dict[int, list[Any]] = {}
        self._entries = {id(entry.layer): entry for entry in walk(model)}
        # A tensor that one layer hands on and the next takes in is looked at once.
        self._sketches: dict[Any, tuple[Any, Sketch]] = {}

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Record what runs inside."""
        self.visits.over = False
        try:
            yield
        finally:
            self.visits.over = True
            self.visits.clear()

    def enter(self, layer: Any, given: Any, *, training: bool) -> str | None:
        """Begin a call; return its path, None for one that is not looked at."""
        entry = self._entries.get(id(layer))
        if entry is None or self.visits.over or not tf.executing_eagerly():
            return None
        tensors = _tensors(given)
        keep = self.visits.request.keeps(entry.path)
        visit = Visit(
            entry.path,
            type(layer).__name__,
            entry.category,
            [],
            attributes(layer, tensors, training=training),
            keep,
        )
        turns = channels.before_layer(layer, entry.category, tensors)
        self._take(tensors, self._turns(turns), visit.inputs, visit.grad_inputs, keep=keep)
        self.visits.enter(visit)
        return str(entry.path)

    def leave(self, path: str, layer: Any, outputs: Any) -> None:
        """End a call."""
        visit = self.visits.leave(path)
        if visit is not None:
            tensors = _tensors(outputs)
            turns = channels.after_layer(layer, visit.category, tensors)
            into = visit.outputs, visit.grad_outputs
            self._take(tensors, self._turns(turns), *into, keep=visit.keep)

    def _turns(self, turns: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return turns if self.visits.request.layout else [() for _ in turns]

    def _take(
        self,
        tensors: list[Any],
        turns: list[tuple[int, ...]],
        into: list[Sketch],
        grads: dict[int, Sketch],
        *,
        keep: bool,
    ) -> None:
        for index, (tensor, turn) in enumerate(zip(tensors, turns, strict=True)):
            into.append(self.sketch(tensor, turn, keep=keep))
            if tensor.dtype.is_floating:
                self.seen.append(_Seen(tensor, grads, index, turn, keep))

    def sketch(
        self, tensor: Any, turn: tuple[int, ...] | None = None, *, keep: bool = False
    ) -> Sketch:
        """Return the sketch of a tensor; as its mark says if no turn is given."""
        if turn is None:
            turn = channels.turn_of(tensor) if self.visits.request.layout else ()
        key = id(tensor), turn, keep
        if key not in self._sketches:
            values = channels.turned(_numbers(tensor), turn)
            self._sketches[key] = tensor, sketch(values, tensor.dtype.name, keep=keep)
        return self._sketches[key][1]

    def made(
        self,
        kind: Any,
        inputs: Any,
        attrs: Any,
        outputs: Any,
        op_name: Any = None,
        graph: Any = None,
    ) -> None:
        """Take one op, as TensorFlow's op callbacks tell it."""
        del op_name
        if graph is not None or self.visits.over:
            return
        name = kind.decode() if isinstance(kind, bytes) else str(kind)
        places = _WRITTEN.get(name)
        came, went = _tensors(list(inputs)), _tensors(list(outputs)[:places])
        for tensor in went:
            setattr(tensor, _COMPUTED, True)
        channels.after_op(name, attrs, list(inputs), went)
        floats = any(x.dtype.is_floating for x in (*came, *went))
        if name in _VIEWS or not floats or not self.visits.request.ops:
            return
        constants = [x for x in (attrs or ())[1::2] if isinstance(x, float)]
        constants += [float(str(x.numpy())) for x in came if _is_constant(x)]
        self.visits.op(name, constants, *(partial(self._listed, each) for each in (came, went)))

    def _listed(self, tensors: list[Any], *, keep: bool) -> list[Sketch]:
        return [self.sketch(x, keep=keep) for x in tensors]


def _is_constant(tensor: Any) -> bool:
    one = tensor.dtype.is_floating and tensor.shape.num_elements() == 1
    return one and not hasattr(tensor, _COMPUTED)


def _tensors(value: Any) -> list[Any]:
    """Return the tensors of numbers in ``value``."""
    found = [x for x in tf.nest.flatten(value) if tf.is_tensor(x) and hasattr(x, "numpy")]
    if any(x.dtype.is_complex for x in found):
        msg = "complex tensors cannot be inspected"
        raise BackendError(msg)
    return [x for x in found if x.dtype.is_floating or x.dtype.is_integer or x.dtype.is_bool]


@contextlib.contextmanager
def _watched(recorder: _Recorder) -> Iterator[None]:
    """Record calls of layers and ops; run functions of ``tf.function`` eagerly."""
    original, eager = keras.layers.Layer.__call__, tf.config.functions_run_eagerly()

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        training = _is_training(layer, kwargs)
        path = recorder.enter(layer, (args, kwargs), training=training)
        outputs = original(layer, *args, **kwargs)
        if path is not None:
            recorder.leave(path, layer, outputs)
        return outputs

    request = recorder.visits.request
    with contextlib.ExitStack() as stack:
        keras.layers.Layer.__call__ = call
        stack.callback(setattr, keras.layers.Layer, "__call__", original)
        tf.config.run_functions_eagerly(True)
        stack.callback(tf.config.run_functions_eagerly, eager)
        if request.layout or request.ops:
            op_callbacks.add_op_callback(recorder.made)
            stack.callback(op_callbacks.remove_op_callback, recorder.made)
        yield


def _is_training(layer: Any, kwargs: dict[str, Any]) -> bool:
    """Return what Keras will take ``training`` to be in this call."""
    found = kwargs.get("training")
    if found is None:
        context = keras.src.backend.common.global_state.get_global_attribute("current_call_ctx")
        found = None if context is None else context.training
    return bool(found) and layer.trainable
