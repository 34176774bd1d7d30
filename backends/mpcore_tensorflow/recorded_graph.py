"""A compiled step that is recorded stays compiled: a twin of it also returns what layers saw.

The twin is traced with the layers heard, and runs in place of the script's own ``tf.function``
while its steps are recorded; that one is never traced anew. A function that makes no whole step of
the model (no optimizer in it, or several moves, or layers inside of a loop) has no twin.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.autograph.core.converter import ConversionOptions
from tensorflow.python.autograph.impl.api import converted_call
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from mpcore.tools.inspection.recorder import BACKWARD, FORWARD
from mpcore_tensorflow import channels
from mpcore_tensorflow.tap import RanOp, Tap, _Seen, tapped

if TYPE_CHECKING:
    from collections.abc import Callable

    import keras

    from mpcore.backend.listener import Told
    from mpcore.tools.inspection.record import Request
    from mpcore.tools.inspection.recorder import CalledLayer, SeenTensor

__all__ = ["Function", "NoTwinError", "Script", "Twin", "inlined"]

_CONVERTED = ConversionOptions(recursive=True, user_requested=True)


class NoTwinError(Exception):
    """A function is no single step of the model."""


class Script:
    """What the layers of one trace saw, in order; stands for ``Calls`` while it is traced."""

    values = True

    def __init__(self, request: Request) -> None:
        self.request, self.phase, self.simulated = request, FORWARD, ""
        self.events: list[tuple[Any, list[_Seen]]] = []
        self.tensors: list[Any] = []
        self._slots: dict[int, int] = {}
        self.grads: dict[int, int] = {}
        self.updates: dict[str, int] = {}
        self.losses: list[int] = []
        self.settings: dict[str, Any] = {}
        self.rate = self.moves = 0
        self.graph: Any = None

    def slot(self, tensor: tf.Tensor) -> int:
        """Return the number of a tensor among those that the twin returns."""
        outside = hasattr(tensor, "numpy")  # one that the function did not make
        if not outside and tensor.graph is not self.graph:
            msg = "a layer runs inside of a loop or a branch"
            raise NoTwinError(msg)
        if id(tensor) not in self._slots:
            self._slots[id(tensor)] = len(self.tensors)
            self.tensors.append(tf.identity(tensor) if outside else tensor)
        return self._slots[id(tensor)]

    def enter(self, called: CalledLayer, inputs: list[_Seen]) -> None:
        """Take what goes into a layer."""
        self._note(called, inputs)

    def leave(self, path: str, outputs: list[_Seen]) -> None:
        """Take what comes out of it."""
        self._note(path, outputs)

    def _note(self, what: Any, seen: list[_Seen]) -> None:
        for one in seen:
            self.slot(one.tensor)
        self.events.append((what, seen))

    def takes(self, name: str) -> bool:
        """Return that no ops are asked for."""
        del name
        return False

    def floats(self) -> list[Any]:
        """Return the tensors whose gradients are asked for, each once."""
        seen = {id(s.tensor): s.tensor for _, several in self.events for s in several if s.is_float}
        return [tensor for key, tensor in seen.items() if key not in self.grads]

    def differentiated(self, target: tf.Tensor, tensors: list[Any], grads: list[Any]) -> None:
        """Take a loss, and the gradients of ``floats()``."""
        if target.shape.num_elements() == 1:
            self.losses.append(self.slot(target))
        for tensor, grad in zip(tensors, grads, strict=True):
            if grad is not None:
                self.grads[id(tensor)] = self.slot(tf.convert_to_tensor(grad))

    def moved(self, grads: dict[str, Any], settings: dict[str, Any], rate: tf.Tensor) -> None:
        """Take what an optimizer gets; of several around each other the innermost."""
        self.updates = {name: self.slot(tf.convert_to_tensor(g)) for name, g in grads.items()}
        self.settings, self.rate = settings, self.slot(tf.convert_to_tensor(rate))

    def play(self, calls: Any, told: Told, arrays: list[Any]) -> None:
        """Tell of a step that ran what an eager one would have told."""
        wanted: list[tuple[_Seen, Callable[[SeenTensor], None]]] = []
        known: dict[tuple[int, tuple[int, ...]], _Seen] = {}
        origin: dict[int, int] = {}

        def seen(one: _Seen) -> _Seen:
            key = id(one.tensor), one.turn
            if key not in known:
                known[key] = _Seen(arrays[self._slots[key[0]]], one.turn, wanted)
                origin[id(known[key])] = key[0]
            return known[key]

        with calls.running(FORWARD):
            for what, several in self.events:
                tell = calls.leave if isinstance(what, str) else calls.enter
                tell(what, [seen(one) for one in several])
        for place in self.losses:
            told.loss(float(arrays[place].numpy().reshape(())), [])
        with calls.running(BACKWARD):
            for one, take in wanted:
                place = self.grads.get(origin[id(one)], -1)
                if place >= 0:
                    take(_Seen(arrays[place], one.turn, []))
        group = self.settings["groups"][0] | {"rate": float(arrays[self.rate].numpy())}
        grads = {name: arrays[place] for name, place in self.updates.items()}
        told.updates(grads, self.settings | {"groups": [group]})


class _TracedTap(Tap):
    """Hears the layers of a function that is being traced."""

    def __init__(self, model: keras.Model, script: Script) -> None:
        super().__init__(model, script)  # type: ignore[arg-type]  # what a tap needs of Calls
        self._graph = script.graph

    def _found(self, value: Any) -> list[Any]:
        found = [x for x in tf.nest.flatten(value) if tf.is_tensor(x)]
        if any(isinstance(x, tf.Variable) for x in found):
            found = [tf.convert_to_tensor(x) for x in found]
        return self._numbers(found)

    def _hears(self) -> bool:
        if tf.compat.v1.get_default_graph() is not self._graph:
            msg = "a layer runs inside of a loop or a branch"
            raise NoTwinError(msg)
        return True

    def _ran(self, op: RanOp) -> None:
        """Mark the layout of what an op returned; nothing else is asked of ops."""
        channels.after_op(op.kind, op.attrs, list(op.inputs), list(op.outputs))


class Twin:
    """What stands for one ``tf.function`` while its steps are recorded.

    Args:
        function: the script's.
        model: whose layers are heard.
        request: what is asked for.
    """

    def __init__(self, function: Function, model: keras.Model, request: Request) -> None:
        """Trace nothing yet."""
        self._model, self._request = model, request
        self._scripts: dict[int, Script] = {}
        self._held: list[Any] = []  # graphs: their ids stay theirs
        self.tracing: Script | None = None
        traced = tf.autograph.experimental.do_not_convert(partial(self._traced, function))
        self._function = function._clone(traced)

    def ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Script:
        """Trace it for these arguments, unless it is; nothing runs.

        Raises:
            NoTwinError: it is no single step.
        """
        graph = self._function.get_concrete_function(*args, **kwargs).graph
        return self._scripts[id(graph)]

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
        """Run a step; return what the function returns, and what its layers saw."""
        found: tuple[Any, list[Any]] = self._function(*args, **kwargs)
        return found

    def _traced(self, function: Function, *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        script = Script(self._request)
        script.graph = tf.compat.v1.get_default_graph()
        tap = _TracedTap(self._model, script)
        self.tracing = script
        try:
            with tapped(tap._around, tap._ran if self._request.turns else None):
                result = inlined(function, args, kwargs)
        finally:
            self.tracing = None
        if script.moves != 1 or not script.events:
            msg = f"{script.moves} moves of the model's parameters in it"
            raise NoTwinError(msg)
        self._scripts[id(script.graph)] = script
        self._held.append(script.graph)
        return result, script.tensors


def inlined(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run what a ``tf.function`` was made of, as it would be traced."""
    if function._autograph:
        return converted_call(function.python_function, args, kwargs, options=_CONVERTED)
    return function.python_function(*args, **kwargs)
