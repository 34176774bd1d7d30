"""A prepared Keras model under another policy for a while: what ``amp.diagnose`` tries cures on.

Calls, dtype policies, flags and the storage of weights are put back as the very objects they
were, so that compiled steps stay valid.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from mpcore.backend.backend import find_backend
from mpcore.capabilities.capabilities import honour
from mpcore.errors import BackendError
from mpcore.numerics.dtypes import is_low
from mpcore_tensorflow.casting import apply_plan, release_plan
from mpcore_tensorflow.layers import MARK, walk
from mpcore_tensorflow.storage import set_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import keras

    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore_tensorflow.amp import KerasAmp

__all__ = ["NoGuard", "kept", "under"]

_LAYER = ("call", "_convert_inputs_to_tensors", "autocast", "_dtype_policy", MARK)
_MODEL = ("train_function", "test_function", "predict_function")


class NoGuard:
    """Stands for the guard of the buffers: a trial is no step."""

    def forward(self) -> contextlib.AbstractContextManager[None]:
        """Take no note."""
        return contextlib.nullcontext()


@contextlib.contextmanager
def under(amp: KerasAmp, policy: Policy) -> Iterator[Callable[[Any], Any]]:
    """Run the model of ``amp`` under ``policy``; yield what leaves a loss function as it is.

    Raises:
        BackendError: Keras cannot honour it; nothing has changed.
    """
    model, backend = amp.model, find_backend(amp.model)
    if policy.by == "graph":
        msg = "a policy by='graph' is not tried on a prepared Keras model; prepare it anew"
        raise BackendError(msg)
    with kept(model), contextlib.ExitStack() as stack:
        _widen(stack, amp)
        with amp.guard.opened():
            release_plan(model)
        plan, _ = honour(policy, backend.layers(model), backend.capabilities(model))
        if policy.by == "model":
            _narrow(stack, model, plan)
        guard: Any = NoGuard()
        with amp.guard.opened():
            apply_plan(model, plan, guard)
        yield lambda loss_fn: loss_fn


@contextlib.contextmanager
def kept(model: keras.Model) -> Iterator[None]:
    """Put calls, dtype policies and flags back at the end."""
    with contextlib.ExitStack() as stack:
        layers = [model, *model._flatten_layers()]
        layers += [layer._functional for layer in layers if hasattr(layer, "_functional")]
        for layer in {id(layer): layer for layer in layers if layer is not None}.values():
            stack.callback(_put_back, layer, _LAYER, _own(layer, _LAYER))
        stack.callback(_put_back, model, _MODEL, _own(model, _MODEL))
        yield


def _own(holder: keras.Layer, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: vars(holder)[name] for name in names if name in vars(holder)}


def _put_back(holder: keras.Layer, names: tuple[str, ...], own: dict[str, Any]) -> None:
    for name in names:
        vars(holder).pop(name, None)
    vars(holder).update(own)


def _widen(stack: contextlib.ExitStack, amp: KerasAmp) -> None:
    """Let 16-bit weights hold the float32 values that they stand for."""
    for entry in walk(amp.model):
        for variable in entry.variables.values():
            dtype = tf.as_dtype(variable.value.dtype).name
            if dtype in ("float16", "bfloat16"):
                values = amp.master_values(variable)
                stack.callback(_restore, variable, variable._value, variable._dtype)
                set_storage(variable, tf.constant(values))


def _narrow(stack: contextlib.ExitStack, model: keras.Model, plan: Plan) -> None:
    """Store weights as the plan says."""
    for entry, layer_plan in zip(walk(model), plan.layers, strict=True):
        for variable in entry.variables.values():
            if is_low(layer_plan.param or "float32") and variable.trainable:
                stack.callback(_restore, variable, variable._value, variable._dtype)
                set_storage(variable, tf.cast(variable.value, layer_plan.param))


def _restore(variable: keras.Variable, value: Any, dtype: str) -> None:
    variable._value, variable._dtype = value, dtype
