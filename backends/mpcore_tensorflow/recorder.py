"""One batch through a Keras model, forward and backward as a step does, and what it does told.

Where values are looked at the loss function runs eagerly, under a tape that also differentiates
for what layers took in and handed on; functions of ``tf.function`` run eagerly too. Where dtypes
are enough it is traced as ``tf.function`` would, and the graph is thrown away: nothing runs, so
nothing can change. What happens is heard by the ``Tap`` of ``mpcore_tensorflow.tap``.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.models.functional import Functional

from mpcore.backend.layout import per_tensor
from mpcore.errors import BackendError
from mpcore.tools.inspection.recorder import (
    BACKWARD,
    FORWARD,
    Outcome,
)
from mpcore.tools.inspection.tensor_summary import summarize
from mpcore_tensorflow import channels
from mpcore_tensorflow.layers import variable_names
from mpcore_tensorflow.snapshot import left_alone
from mpcore_tensorflow.tap import OPS, Tap, numbers_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.amp.amp import Amp
    from mpcore.tools.inspection.recorder import Calls
    from mpcore.tools.inspection.tensor_summary import TensorSummary

__all__ = ["OPS", "as_inputs", "record"]


def record(
    model: Any,
    amp: Amp | None,
    batch: tuple[Any, ...],
    loss_fn: Any,
    scale: float,
    calls: Calls[Any, Any],
) -> Outcome:
    """Run one batch and tell what happens; see ``mpcore.tools.inspection.recorder.Recorder``."""
    losses = _losses(model, amp, loss_fn, values=calls.values)
    tap, tensors = Tap(model, calls), tuple(map(_tensor, batch))
    seen = {f"batch[{i}]": tap.seen(x, ()) for i, x in enumerate(tensors) if tf.is_tensor(x)}
    if not calls.values:
        how = "a traced graph, every operation; what compilers make of it is not seen"
        _trace(tap, amp, tensors, losses, scale, calls)
        return Outcome(0.0, seen, {}, how)
    if calls.request.turns:
        words = per_tensor(calls.request.layout, len(seen))
        for word, one in zip(words, seen.values(), strict=True):
            if word == "channels_first":
                channels.mark_image(one.tensor)
    sums: dict[int, list[Any]] = {}
    with left_alone(model, amp), tap.open():
        total = np.float32(0)
        for function, trained in losses:
            loss, grads = _differentiated(tap, function, trained, tensors, scale, calls)
            total = total + np.float32(loss.numpy())
            for variable, grad in zip(trained, grads, strict=True):
                sums.setdefault(id(variable), []).append(grad)
    return Outcome(
        float(total),
        {place: tap.seen(one.tensor) for place, one in seen.items()},
        _gradients(model, sums) if calls.request.backward else {},
        "one batch, eagerly; gradients by a tape, ops by callbacks",
    )


def _trace(
    tap: Tap,
    amp: Any,
    batch: tuple[Any, ...],
    losses: list[tuple[Callable[..., Any], list[Any]]],
    scale: float,
    calls: Calls[Any, Any],
) -> None:
    def run(*given: Any) -> None:
        for function, trained in losses:
            _differentiated(tap, function, trained, given, scale, calls)

    arrays = (x if tf.is_tensor(x) else np.asarray(x) for x in batch)
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in arrays]
    with tap.open():
        tf.function(run, autograph=False).get_concrete_function(*specs)
    for optimizer in amp.optimizers.values() if amp is not None else ():
        optimizer.guard.take()  # what it noted belongs to the graph that is gone


def _losses(
    model: Any, amp: Any, loss_fn: Any, *, values: bool
) -> list[tuple[Callable[..., Any], list[Any]]]:
    """Return every loss function, and the variables that it is differentiated for."""
    named = loss_fn if isinstance(loss_fn, dict) else {"": loss_fn or _mean_loss(model)}
    if amp is None or not values:
        return [(function, list(model.trainable_variables)) for function in named.values()]
    amp._check_prepared()
    if amp._strategy is not None:
        msg = (
            "a model on several replicas cannot be inspected: make and prepare it without the "
            "strategy, with the same weights"
        )
        raise BackendError(msg)
    if isinstance(loss_fn, dict):
        return [(function, amp._weights(name)) for name, function in loss_fn.items()]
    return [(named[""], [v for name in amp.optimizers for v in amp._weights(name)])]


def as_inputs(model: keras.Model, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what the model is called with: where it takes one argument, several are a list."""
    takes = list(inspect.signature(model.call).parameters.values())
    named = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    own = [x for x in takes if x.name != "training" and x.kind not in named]
    alone = len(own) == 1 and own[0].kind is not inspect.Parameter.VAR_POSITIONAL
    alone = alone or isinstance(model, Functional)
    return ([*args],) if alone and len(args) > 1 else args


def _mean_loss(model: Any) -> Callable[..., Any]:
    """Return a loss that is the mean of the model's floats, each in float32."""

    def loss(*batch: Any) -> Any:
        outputs = keras.tree.flatten(model(*as_inputs(model, batch), training=True))
        floats = [x for x in outputs if keras.backend.is_float_dtype(x.dtype)]
        return tf.add_n([tf.reduce_mean(tf.cast(x, tf.float32)) for x in floats])

    return loss


def _tensor(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return tf.constant(value, np.float32 if value.dtype == np.float64 else value.dtype)
    return tf.identity(value) if tf.is_tensor(value) else value  # to be marked


def _differentiated(
    tap: Tap,
    function: Any,
    trained: list[Any],
    batch: tuple[Any, ...],
    scale: float,
    calls: Calls[Any, Any],
) -> tuple[Any, list[Any]]:
    """Run one loss forward and backward; return it in float32, and the gradients if asked for."""
    first = len(tap.wanted)
    with tf.GradientTape() as tape:
        if not calls.values:
            tape.watch([x for x in batch if x.dtype.is_floating])
        with calls.running(FORWARD):
            loss = _one_number(function(*batch))
            scaled = loss if scale == 1.0 else loss * scale
    if not calls.request.backward:
        return loss, [None] * len(trained)
    wanted = tap.wanted[first:]
    if not calls.values:  # those of a loop's body are in a graph of their own
        wanted = [one for one in wanted if getattr(one[0].tensor, "graph", None) is loss.graph]
    with calls.running(BACKWARD):
        sources = [[v.value for v in trained], [seen.tensor for seen, _ in wanted]]
        grads, found = tape.gradient(scaled, sources)
    for (seen, take), grad in zip(wanted, found, strict=True):
        if grad is not None:
            take(tap.seen(grad, seen.turn))
    return loss, grads


def _one_number(loss: Any) -> Any:
    if not tf.is_tensor(loss) or loss.shape.num_elements() != 1 or not loss.dtype.is_floating:
        msg = f"`loss_fn` must return one number, got {loss!r:.80}"
        raise BackendError(msg)
    return tf.reshape(tf.cast(loss, tf.float32), ())


def _gradients(model: Any, sums: dict[int, list[Any]]) -> dict[str, TensorSummary | None]:
    names = variable_names(model)
    found: dict[str, TensorSummary | None] = {}
    for variable in model.trainable_variables:
        each = [_dense(g) for g in sums.get(id(variable), []) if g is not None]
        dtype = each[0][1] if each else ""
        total = sum(values for values, _ in each)
        found[names[id(variable)]] = summarize(np.asarray(total), dtype) if each else None
    return found


def _dense(grad: Any) -> tuple[Any, str]:
    """Return a gradient as float32 numbers, and its dtype."""
    if not isinstance(grad, tf.IndexedSlices):
        return numbers_of(grad), grad.dtype.name
    whole = np.zeros(tuple(grad.dense_shape.numpy()), np.float32)
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # gradients may be out of range: that is told
        np.add.at(whole, grad.indices.numpy(), numbers_of(grad.values))
    return whole, grad.values.dtype.name
