"""The steps of Keras' own loop, for who follows them: what each did, as ``amp.step`` returns it."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from mpcore._lib.interrupts import Held
from mpcore.errors import BackendError
from mpcore.step.result import StepResult, StepValues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore_tensorflow.amp import KerasAmp

__all__ = ["Record", "follow_fit", "packed", "places", "to_numpy"]


class Record:
    """What the latest ``apply`` did: one vector on the device, written by the step itself."""

    def __init__(self, variables: Sequence[Any], names: Sequence[str]) -> None:
        """Make room.

        Args:
            variables: what the optimizer may move.
            names: their paths.
        """
        self._places = {id(variable): place for place, variable in enumerate(variables)}
        self._names = list(names)
        self._loss: tuple[Any, Any] = (None, None)
        with tf.init_scope():
            empty = tf.zeros(5 + len(names))
            self._vector = tf.Variable(empty, trainable=False, name="record")

    def note(self, loss: tf.Tensor) -> None:
        """Take note of the loss of this step, before it is scaled."""
        self._loss = (_graph(), loss)

    def write(self, variables: Sequence[Any], stepped: Any, norms: Any, scales: Any) -> None:
        """Write what a step did.

        Args:
            variables: what it was to move.
            stepped: whether it did.
            norms: of their true gradients, in their order.
            scales: the scale of this step, and that of the next.
        """
        place, loss = self._loss
        known = place == _graph() and loss is not None and loss.shape.rank == 0
        ordered = [tf.constant(0.0)] * len(self._names)
        for variable, norm in zip(variables, tf.unstack(norms), strict=True):
            ordered[self._places[id(variable)]] = norm
        shown = loss if known else tf.constant(float("nan"))
        done = StepValues(shown, [stepped], tf.stack(ordered), scales[0], scales[1], 0)
        self._vector.assign(packed(done))
        self._loss = (None, None)

    def result(self) -> StepResult:
        """Return what the latest step did."""
        vector = tf.convert_to_tensor(self._vector)
        values = StepValues(*((vector, part) for part in places(1)))
        return StepResult(values, self._names, to_numpy)


def packed(done: StepValues) -> Any:
    """Return one vector: each output of a compiled function costs the host some microseconds."""
    numbers = [done.loss, done.scale, done.next_scale, done.dropped, *done.stepped]
    return tf.concat([tf.stack([tf.cast(x, tf.float32) for x in numbers]), done.norms], axis=0)


def places(optimizers: int) -> tuple[Any, ...]:
    """Return where the six values of a step are in that vector, in the order of StepValues."""
    return 0, slice(4, 4 + optimizers), slice(4 + optimizers, None), 1, 2, 3


def to_numpy(place: tuple[Any, Any]) -> Any:
    """Return a value of a step, from the vector and its place there."""
    vector, part = place
    return vector.numpy()[part]


def follow_fit(amp: KerasAmp, make: Callable[..., Any], *, force: bool) -> None:
    """Make Keras' train function such that each of its steps ends as one of ``amp.step`` does.

    Args:
        amp: the prepared model.
        make: Keras' ``make_train_function``.
        force: make it anew although there is one.

    Raises:
        BackendError: somebody follows each step, and Keras would tell of several at once.
    """
    model = amp.model
    each = [one for one in amp.observers if getattr(_owner(one), "follows_each_step", False)]
    if (each or amp.keeper) and (model.steps_per_execution != 1 or len(amp.optimizers) != 1):
        who = f"mpcore.{type(_owner(each[0])).__name__}" if each else "on_overflow='keep full'"
        msg = (
            f"`steps_per_execution` must be 1, with one optimizer, where {who} follows each "
            f"step of fit, got {model.steps_per_execution} and {len(amp.optimizers)} optimizers: "
            "use amp.step, or close it"
        )
        raise BackendError(msg)
    if amp.follows_fit and len(amp.optimizers) == 1:
        force = amp.keep_record() or force
    make(force)
    if not isinstance(model.train_function, _Followed):
        model.train_function = _Followed(amp, model.train_function)


class _Followed:
    """A train function of Keras, and what comes behind each call of it."""

    def __init__(self, amp: KerasAmp, function: Callable[..., Any]) -> None:
        self._amp, self._function = weakref.ref(amp), function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        amp = self._amp()
        if amp is None:
            return self._function(*args, **kwargs)
        # A graph cannot be left in its middle; behind it the step is to end whole.
        held = contextlib.nullcontext() if amp.model.run_eagerly else Held()
        try:
            with held:
                data = None
                if amp.keeper is not None:
                    # The batch that ran has to be at hand: it is taken here, and handed on.
                    data = next(args[0])
                    args = (iter([data]),)
                outputs = self._function(*args, **kwargs)
                plan = amp.plan
                amp.fit_step_done(data)
                if amp.plan is not plan:
                    amp.model.make_train_function(force=True)
        except BaseException:
            amp.abandon()
            raise
        return outputs


def _owner(observer: Any) -> Any:
    return getattr(observer, "__self__", observer)


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
