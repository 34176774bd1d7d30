"""The steps of a Keras script, ``fit`` or a loop of its own: layers, tapes and optimizers.

While a step is recorded, functions of ``tf.function`` run eagerly, or as a twin that returns what
its layers saw (``recorded_graph``): behind the first recorded step, where a function is a step of
a plain model.
Between recorded steps compiled functions count their steps by a call of Python, which XLA refuses;
functions that were compiled before do not count.

Tried with TensorFlow 2.21 and Keras 3.15.1.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from mpcore.tools.inspection.recorder import BACKWARD, FORWARD
from mpcore_tensorflow.layers import variable_names
from mpcore_tensorflow.recorded_graph import Function, Twin, inlined
from mpcore_tensorflow.tap import Tap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.backend.listener import Told
    from mpcore_tensorflow.amp import KerasAmp
    from mpcore_tensorflow.recorded_graph import Script

__all__ = ["listen"]

_WORDS = {
    "beta_1": "beta1",
    "beta_2": "beta2",
    "epsilon": "eps",
    "weight_decay": "weight decay",
    "momentum": "momentum",
    "nesterov": "nesterov",
    "rho": "rho",
    "amsgrad": "amsgrad",
    "clipnorm": "clipping by the norm of each array",
    "global_clipnorm": "clipping by norm",
    "clipvalue": "clipping by value",
}
_OPTIMIZER = next(cls for cls in keras.optimizers.Optimizer.__mro__ if "apply" in vars(cls))


def listen(model: keras.Model, amp: KerasAmp | None, told: Told) -> Callable[[], None]:
    """Follow the steps; see ``mpcore.backend.listener.Listener``."""
    return _Listening(model, amp, told).end


class _Listening:
    """What is replaced from one step to the next, and while a step is recorded."""

    def __init__(self, model: keras.Model, amp: KerasAmp | None, told: Told) -> None:
        self._model, self._amp, self._told = model, amp, told
        self._step: contextlib.ExitStack | None = None
        self._depth, self._ended = 0, False
        self._tap: Tap | None = None
        self._twins: dict[int, Twin | None] = {}  # None: a function that has none
        self._functions: list[Any] = []  # theirs: their ids stay
        self._twin: Twin | None = None
        self._stay = contextlib.ExitStack()
        for holder in dict.fromkeys((_OPTIMIZER, *_subclasses_with_apply(_OPTIMIZER))):
            self._stay.enter_context(_replaced(holder, "apply", self._applied))
        self._begin()

    def end(self) -> None:
        self._ended = True
        self._close()
        self._stay.close()

    def _begin(self) -> None:
        calls = self._told.wanted()
        if calls is not None:
            self._eagerly()
            self._open(calls)

    def _begin_later(self) -> None:
        """Begin at the next call of a layer: TensorFlow's own thread must not be listened to."""
        calls = self._told.wanted()
        if calls is None:
            return
        self._eagerly()
        waiting = contextlib.ExitStack()

        def call(_: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
            waiting.close()
            self._open(calls)
            return layer(*args, **kwargs)

        waiting.enter_context(_replaced(keras.layers.Layer, "__call__", call))
        if self._may_have_twins(calls):
            waiting.enter_context(_replaced(Function, "__call__", call))
        if self._step is not None:
            self._step.callback(waiting.close)

    def _eagerly(self) -> None:
        self._step, self._begun = contextlib.ExitStack(), False
        eager = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        self._step.callback(tf.config.run_functions_eagerly, eager)

    def _open(self, calls: Any) -> None:
        if self._step is None:
            return
        tap = self._tap = Tap(self._model, calls)
        self._step.enter_context(_heard(tap, self._first))
        self._step.enter_context(calls.running(FORWARD))
        gradient = partial(self._gradient, tap, calls)
        self._step.enter_context(_replaced(tf.GradientTape, "gradient", gradient))
        if self._may_have_twins(calls):
            by = partial(self._function_called, tap, calls)
            self._step.enter_context(_replaced(Function, "__call__", by))

    def _may_have_twins(self, calls: Any) -> bool:
        """Return whether compiled functions may stay so: ops are heard in eager ones alone."""
        return self._amp is None and not calls.request.ops and not tf.distribute.has_strategy()

    def _function_called(
        self, tap: Tap, calls: Any, original: Any, function: Function, *args: Any, **kwargs: Any
    ) -> Any:
        """Let the twin of a function make the step, if it has one."""
        if self._twin is not None:
            return (
                inlined(function, args, kwargs)
                if self._tracing
                else original(function, *args, **kwargs)
            )
        if not tf.executing_eagerly():
            return original(function, *args, **kwargs)
        twin = self._twin_of(function, calls)
        if twin is None:
            return original(function, *args, **kwargs)
        tf.config.run_functions_eagerly(False)
        self._twin = twin
        try:
            with tap.unheard():  # of two that hear ops the second gets no outputs
                self._first()
                script = self._ready(function, twin, args, kwargs)
                if script is not None:
                    result, arrays = twin(args, kwargs)
        finally:
            self._twin = None
            tf.config.run_functions_eagerly(True)
        if script is None:
            return original(function, *args, **kwargs)
        script.play(calls, self._told, arrays)
        self._through()
        return result

    def _twin_of(self, function: Function, calls: Any) -> Twin | None:
        if id(function) not in self._twins:
            self._twins[id(function)] = Twin(function, self._model, calls.request)
            self._functions.append(function)
        return self._twins[id(function)]

    def _ready(
        self, function: Function, twin: Twin, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Script | None:
        try:
            return twin.ready(args, kwargs)
        except Exception:  # whatever it is, the function runs eagerly now, and says what is its own
            self._twins[id(function)] = None
            return None

    @property
    def _tracing(self) -> Script | None:
        return None if self._twin is None else self._twin.tracing

    def _close(self) -> None:
        if self._step is not None:
            self._step.close()
        self._step = self._tap = None

    def _first(self) -> None:
        if not self._begun:
            self._begun = True
            self._told.begun(tf.random.get_global_generator().state.numpy().tobytes())

    def _gradient(
        self, tap: Any, calls: Any, original: Any, tape: Any, target: Any, sources: Any, **more: Any
    ) -> Any:
        """Differentiate for what layers took in and handed on, too."""
        script = self._tracing
        if script is not None:
            floats = script.floats()
            grads, found = original(tape, target, [sources, floats], **more)
            script.differentiated(target, floats, found)
            return grads
        wanted, tap.wanted = tap.wanted, []
        scale = 1.0 if self._amp is None else float(self._amp.scale)
        if tf.is_tensor(target) and target.shape.num_elements() == 1:
            self._told.loss(float(np.asarray(target).reshape(())) / scale, [])
        with calls.running(BACKWARD):
            tensors = [seen.tensor for seen, _ in wanted]
            with tap.unheard():
                grads, found = original(tape, target, [sources, tensors], **more)
            for (seen, take), grad in zip(wanted, found, strict=True):
                if grad is not None:
                    take(tap.seen(grad, seen.turn))
        return grads

    def _applied(self, original: Any, optimizer: Any, grads: Any, variables: Any = None) -> Any:
        """Tell what the innermost optimizer gets, and when the outermost is through."""
        moved = list(optimizer._trainable_variables if variables is None else variables)
        names = variable_names(self._model)
        own = {id(v): names[id(v)] for v in self._model.trainable_variables}
        if self._amp is not None:
            targets = {id(self._amp.optimizer.target(v)): own[id(v)] for v in self._variables()}
            own |= targets
        if not any(id(v) in own for v in moved):
            return original(optimizer, grads, variables)
        if not tf.executing_eagerly():
            return self._traced(original, optimizer, grads, variables, moved, own)
        if self._step is not None:
            known = zip(moved, grads, strict=True)
            named = {own[id(v)]: g for v, g in known if id(v) in own and g is not None}
            arrays = {n: tf.convert_to_tensor(g) for n, g in named.items()}
            self._told.updates(arrays, _settings(optimizer, list(named)))
        heard = self._tap if not self._depth else None
        quiet = heard.unheard() if heard else contextlib.nullcontext()
        self._depth += 1
        try:
            with quiet:
                return original(optimizer, grads, variables)
        finally:
            self._depth -= 1
            if not self._depth:
                self._through()

    def _traced(
        self,
        original: Any,
        optimizer: Any,
        grads: Any,
        variables: Any,
        moved: list[Any],
        own: dict[int, str],
    ) -> Any:
        """Count the steps of a compiled function: the next one may be recorded."""
        script = self._tracing
        if script is not None:
            known = zip(moved, grads, strict=True)
            named = {own[id(v)]: g for v, g in known if id(v) in own and g is not None}
            script.moved(named, _settings(optimizer, list(named)), optimizer.learning_rate)
            script.moves += not self._depth
        self._depth += 1
        try:
            result = original(optimizer, grads, variables)
        finally:
            self._depth -= 1
        if not self._depth and script is None:
            tf.numpy_function(self._counted, [], [])
        return result

    def _counted(self) -> None:
        if not self._ended:
            self._told.updated()
        if not self._ended:
            self._begin_later()

    def _variables(self) -> list[Any]:
        return list(self._model.trainable_variables)

    def _through(self) -> None:
        if self._ended:
            return
        self._close()
        self._told.updated()
        if not self._ended:
            self._begin()


def _settings(optimizer: keras.optimizers.Optimizer, arrays: list[str]) -> dict[str, Any]:
    """Return what an optimizer is set to now; the inner one where it is wrapped."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    told = {
        word: float(value)
        for name, word in _WORDS.items()
        if isinstance(value := getattr(optimizer, name, None), bool | int | float)
    }
    told["rate"] = float(optimizer.learning_rate) if tf.executing_eagerly() else 0.0
    groups = [{"arrays": arrays, **told}]
    return {"type": type(optimizer).__name__, "groups": groups}


@contextlib.contextmanager
def _heard(tap: Any, first: Callable[[], None]) -> Iterator[None]:
    around = tap._around

    def call(layer: Any, run: Any, args: Any, kwargs: Any) -> Any:
        if tf.executing_eagerly():
            with tap.unheard():
                first()
        return around(layer, run, args, kwargs)

    tap._around = call
    with tap.open():
        yield


@contextlib.contextmanager
def _replaced(holder: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
    """Let ``by(original, self, ...)`` stand for a method of a class."""
    original = vars(holder)[name]

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return by(original, self, *args, **kwargs)

    setattr(holder, name, method)
    try:
        yield
    finally:
        setattr(holder, name, original)


def _subclasses_with_apply(base: Any) -> Iterator[Any]:
    for cls in base.__subclasses__():
        if "apply" in vars(cls):
            yield cls
        yield from _subclasses_with_apply(cls)
