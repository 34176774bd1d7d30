"""Carry out a plan on a Keras model: dtype policies, and a replaced ``call`` where they fall short.

Keras casts per layer: ``dtype_policy`` says what a layer's inputs and variables are cast to.
Four things it cannot say are said by replacing ``call`` on the instance: another output dtype,
"hand on what comes in", the model's own output dtype, and the start of a training step.
A nested Functional model would cast its inputs to those it was drawn with; it no longer does.

Source: keras/src/layers/layer.py and models/functional.py of Keras 3.15.1.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import keras
from keras.src.backend import AutocastScope

from mpcore.dtypes import is_low
from mpcore_tensorflow.layers import walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.plan import LayerPlan, Plan
    from mpcore_tensorflow.buffers import BufferGuard
    from mpcore_tensorflow.layers import Entry

__all__ = ["apply_plan", "cast_floats", "is_prepared"]

_MARK = "_mpcore_original"
_PROMOTES = ("GaussianNoise", "GaussianDropout", "AlphaDropout")  # they draw float32 numbers


def apply_plan(model: Any, plan: Plan, guard: BufferGuard) -> None:
    """Apply ``plan`` to a built ``model`` in place; a plan applied before is taken off first.

    A dtype that the user set on a layer is overridden. Variables keep their dtype here.

    Args:
        model: the model.
        plan: one entry for each entry of ``walk(model)``.
        guard: told when a training-mode call of the model begins.
    """
    for entry, layer_plan in zip(walk(model), plan.layers, strict=True):
        for layer in entry.layer._flatten_layers():
            if entry.category != "container" or layer is entry.layer:
                _restore(layer)
        _apply_layer(entry, layer_plan)
    for layer in model._flatten_layers():
        drawn = getattr(layer, "_functional", layer)  # the graph inside a Sequential
        if hasattr(drawn, "_convert_inputs_to_tensors"):
            if drawn is not layer:
                _restore(drawn)
            _replace(drawn, "_convert_inputs_to_tensors", _inputs_as_they_come(drawn))
    _replace(model, "call", _root(model, guard, plan.policy.output))
    # Traced with the former dtypes; Keras makes them anew at the next fit.
    model.train_function = model.test_function = model.predict_function = None


def is_prepared(model: Any) -> bool:
    """Return whether a plan was applied to ``model``, or it is part of a model with one."""
    return _MARK in vars(model)


def _apply_layer(entry: Entry, plan: LayerPlan) -> None:
    layer = entry.layer
    if plan.compute == "follow":
        _set_policy(layer, plan.param or "float32")
        layer.autocast = False
        if entry.category != "container" and (entry.variables or type(layer).__name__ in _PROMOTES):
            _replace(layer, "call", _follow)
        return
    for part in layer._flatten_layers():
        _set_policy(part, _policy_name(plan))
    if plan.output != plan.compute:
        _replace(layer, "call", _output(plan.output))


def _policy_name(plan: LayerPlan) -> str:
    if is_low(plan.compute) and plan.param != plan.compute:
        return f"mixed_{plan.compute}"
    return plan.compute


def _set_policy(layer: Any, name: str) -> None:
    # Layers of strings or integers (tokenizers and the like) have no precision to set.
    if keras.backend.is_float_dtype(layer.compute_dtype):
        layer.dtype_policy = keras.DTypePolicy(name)


def _replace(layer: Any, method: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(original)`` in the place of a method, on this instance only."""
    _remember(layer)
    original = getattr(layer, method)
    setattr(layer, method, functools.wraps(original)(make(original)))


def _remember(layer: Any) -> None:
    if _MARK not in vars(layer):
        kept = {name: vars(layer).get(name) for name in ("call", "_convert_inputs_to_tensors")}
        setattr(layer, _MARK, _Originals(kept, getattr(layer, "autocast", None)))


class _Originals:
    """What a layer had before; an object, as Keras would track a dictionary."""

    def __init__(self, methods: dict[str, Any], autocast: Any) -> None:
        self.methods, self.autocast = methods, autocast


def _restore(layer: Any) -> None:
    kept = vars(layer).get(_MARK)
    if kept is None:
        _remember(layer)
        return
    for name, value in kept.methods.items():
        if value is not None:
            setattr(layer, name, value)
        elif name in vars(layer):
            delattr(layer, name)
    layer.autocast = kept.autocast


def cast_floats(value: Any, dtype: str) -> Any:
    """Return ``value`` with every floating-point tensor in it as ``dtype``, masks kept."""
    return keras.tree.map_structure(lambda x: _cast(x, dtype), value)


def _cast(x: Any, dtype: str) -> Any:
    is_float = keras.ops.is_tensor(x) and keras.backend.is_float_dtype(x.dtype)
    if not is_float or keras.backend.standardize_dtype(x.dtype) == dtype:
        return x
    y = keras.ops.cast(x, dtype)
    mask = getattr(x, "_keras_mask", None)
    if mask is not None:
        y._keras_mask = mask
    return y


def _output(dtype: str) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return cast_floats(original(*args, **kwargs), dtype)

        return call

    return make


def _follow(original: Any) -> Any:
    # It has weights or random numbers of its own: compute in float32, hand on what came in.
    def call(*args: Any, **kwargs: Any) -> Any:
        floats = [
            keras.backend.standardize_dtype(x.dtype)
            for x in keras.tree.flatten(args)
            if keras.ops.is_tensor(x) and keras.backend.is_float_dtype(x.dtype)
        ]
        with AutocastScope("float32"):
            outputs = original(*cast_floats(args, "float32"), **kwargs)
        return cast_floats(outputs, floats[0]) if floats else outputs

    return call


def _root(model: Any, guard: BufferGuard, output: str) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        # Without a `training` argument only the model knows whether it trains: assume so.
        default = None if model._call_has_training_arg else True

        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("training", default) not in (False, None):
                guard.enter()
            return cast_floats(original(*args, **kwargs), output)

        return call

    return make


def _inputs_as_they_come(model: Any) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def convert(flat_inputs: Any) -> Any:
            converted = original(flat_inputs)
            rows = zip(flat_inputs, model.inputs, converted, strict=True)
            return [_as_it_comes(x, declared, other) for x, declared, other in rows]

        return convert

    return make


def _as_it_comes(x: Any, declared: Any, converted: Any) -> Any:
    if x is None or declared.sparse or not keras.backend.is_float_dtype(declared.dtype):
        return converted
    x = keras.ops.convert_to_tensor(x, sparse=False)
    name = keras.backend.standardize_dtype(x.dtype)
    return x if name in ("float16", "bfloat16", "float32") else keras.ops.cast(x, "float32")
