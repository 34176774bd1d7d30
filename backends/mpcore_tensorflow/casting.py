"""Carry out a plan on a Keras model: dtype policies, and a replaced ``call`` where they fall short.

Keras casts per layer: ``dtype_policy`` says what a layer's inputs and variables are cast to.
Four things it cannot say are said by replacing ``call`` on the instance: another output dtype,
"hand on what comes in", the dtypes that the model takes in and gives out, and the start of a
training step.
A nested Functional model would cast its inputs to those it was drawn with; it no longer does.

Source: keras/src/layers/layer.py and models/functional.py of Keras 3.15.1.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import keras
from keras.src.backend import AutocastScope

from mpcore.numerics.dtypes import is_low
from mpcore_tensorflow.layers import MARK, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.graph.ir import GraphPlan
    from mpcore.policy.plan import LayerPlan, Plan
    from mpcore.policy.policy import Policy
    from mpcore_tensorflow.buffers import BufferGuard
    from mpcore_tensorflow.layers import Entry

__all__ = ["apply_plan", "cast_floats", "is_prepared", "plans_in", "release_plan"]

_LOW = ("float16", "bfloat16")
_PROMOTES = ("GaussianNoise", "GaussianDropout", "AlphaDropout")  # they draw float32 numbers


def apply_plan(
    model: keras.Model,
    plan: Plan,
    guard: BufferGuard,
    by_graph: Callable[[Any], Any] | None = None,
) -> None:
    """Apply ``plan`` to a built ``model`` in place; a plan applied before is taken off first.

    A dtype that the user set on a layer is in the plan, where no rule overrides it. Variables
    keep their dtype here.

    Args:
        model: the model.
        plan: one entry for each entry of ``walk(model)``.
        guard: told when a training-mode call of the model begins.
        by_graph: under by="graph", what makes of the model's ``call`` one that casts; its layers
            are left as they are.
    """
    if by_graph is not None:
        for layer in model._flatten_layers():
            _restore(layer)

        def call(original: Any) -> Any:
            made = by_graph(original)
            vars(model)[MARK].plans = made.plans
            return _root(model, guard, plan.policy)(made)

        _replace(model, "call", call)
        model.train_function = model.test_function = model.predict_function = None
        return
    for entry, layer_plan in zip(walk(model), plan.layers, strict=True):
        for layer in entry.layer._flatten_layers():
            if entry.category != "container" or layer is entry.layer:
                _restore(layer)
        _apply_layer(entry, layer_plan)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.TimeDistributed):
            # It runs the inner layer's call itself, so the casts around that are its own.
            layer._dtype_policy, layer.autocast = layer.layer._dtype_policy, layer.layer.autocast
        drawn = getattr(layer, "_functional", layer)  # the graph inside a Sequential
        if hasattr(drawn, "_convert_inputs_to_tensors"):
            if drawn is not layer:
                _restore(drawn)
            _replace(drawn, "_convert_inputs_to_tensors", _inputs_as_they_come(drawn))
    _replace(model, "call", _root(model, guard, plan.policy))
    # Traced with the former dtypes; Keras makes them anew at the next fit.
    model.train_function = model.test_function = model.predict_function = None


def is_prepared(model: keras.Model) -> bool:
    """Return whether a plan was applied to ``model``, or it is part of a model with one."""
    return MARK in vars(model)


def _apply_layer(entry: Entry, plan: LayerPlan) -> None:
    layer = entry.layer
    if plan.compute == "follow":
        _set_policy(layer, plan.param or "float32")
        layer.autocast = False
        if entry.category == "container":
            return
        # These look at their own policy: what has weights, random numbers, or is the user's.
        if entry.variables or entry.category == "other" or type(layer).__name__ in _PROMOTES:
            _replace(layer, "call", _follow(list(layer._flatten_layers())))
    else:
        for part in layer._flatten_layers():
            _set_policy(part, _policy_name(plan))
        if not _casts(entry, plan):
            _replace(layer, "call", _in_scope(plan.compute))
    if plan.output not in ("follow", plan.compute):
        _replace(layer, "call", _output(plan.output))


def _casts(entry: Entry, plan: LayerPlan) -> bool:
    """Return whether Keras casts what the variables hold; it does where its policy is mixed."""
    if _policy_name(plan) != plan.compute:
        return True
    dtypes = {keras.backend.standardize_dtype(v.dtype) for v in entry.variables.values()}
    return not any(dtype in _LOW and dtype != plan.compute for dtype in dtypes)


def _in_scope(dtype: str) -> Callable[[Any], Any]:
    """Let frozen variables that came in 16 bits be read in ``dtype``."""

    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with AutocastScope(dtype):
                return original(*args, **kwargs)

        return call

    return make


def _policy_name(plan: LayerPlan) -> str:
    if is_low(plan.compute) and plan.param != plan.compute:
        return f"mixed_{plan.compute}"
    return plan.compute


def _set_policy(layer: keras.Layer, name: str) -> None:
    # Layers of strings or integers (tokenizers and the like) have no precision to set.
    # Not through the property: it writes into a DTypePolicyMap, which is the user's.
    if keras.backend.is_float_dtype(layer.compute_dtype):
        layer._dtype_policy = keras.DTypePolicy(name)


def _replace(layer: keras.Layer, method: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(original)`` in the place of a method, on this instance only."""
    _remember(layer)
    original = getattr(layer, method)
    setattr(layer, method, functools.wraps(original)(make(original)))


def _remember(layer: keras.Layer) -> None:
    if MARK not in vars(layer):
        methods = {name: vars(layer).get(name) for name in ("call", "_convert_inputs_to_tensors")}
        autocast, policy = getattr(layer, "autocast", None), getattr(layer, "_dtype_policy", None)
        setattr(layer, MARK, _Originals(methods, autocast, policy))


class _Originals:
    """What a layer had before; an object, as Keras would track a dictionary."""

    def __init__(self, methods: dict[str, Any], autocast: Any, policy: keras.DTypePolicy) -> None:
        self.methods, self.autocast, self.policy = methods, autocast, policy
        self.plans: list[GraphPlan] = []


def _restore(layer: keras.Layer) -> None:
    before = vars(layer).get(MARK)
    if before is None:
        _remember(layer)
        return
    for name, value in before.methods.items():
        if value is not None:
            setattr(layer, name, value)
        elif name in vars(layer):
            delattr(layer, name)
    layer.autocast = before.autocast
    layer._dtype_policy = before.policy


def plans_in(model: keras.Model) -> tuple[GraphPlan, ...]:
    """Return the plans of the graphs that a model runs as, where it does."""
    marked = vars(model).get(MARK)
    return () if marked is None else tuple(marked.plans)


def release_plan(model: keras.Model) -> None:
    """Take the plan off: calls, policies and flags are again what they were."""
    for layer in model._flatten_layers():
        for marked in (layer, getattr(layer, "_functional", None)):
            if marked is not None and MARK in vars(marked):
                _restore(marked)
                delattr(marked, MARK)
    model.train_function = model.test_function = model.predict_function = None


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


def _follow(parts: list[Any]) -> Callable[[Any], Any]:
    """Run in what comes in: weights are cast to that, and the policy says so meanwhile."""

    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            came = next(filter(None, map(_low_or_full, keras.tree.flatten((args, kwargs)))), "")
            before = [part._dtype_policy for part in parts]
            policy = keras.DTypePolicy("float32" if came in ("", "float32") else f"mixed_{came}")
            try:
                for part in parts:
                    part._dtype_policy = policy
                with AutocastScope(came or "float32"):
                    outputs = original(*args, **kwargs)
            finally:
                for part, own in zip(parts, before, strict=True):
                    part._dtype_policy = own
            return cast_floats(outputs, came) if came else outputs

        return call

    return make


def _low_or_full(x: Any) -> str:
    if not keras.ops.is_tensor(x) or not keras.backend.is_float_dtype(x.dtype):
        return ""
    name = str(keras.backend.standardize_dtype(x.dtype))
    return name if name in _LOW else "float32"


def _root(model: keras.Model, guard: BufferGuard, policy: Policy) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        # Without a `training` argument only the model knows whether it trains: assume so.
        default = None if model._call_has_training_arg else True

        def call(*args: Any, **kwargs: Any) -> Any:
            training = kwargs.get("training", default) not in (False, None)
            if policy.inputs == "cast":
                args, kwargs = cast_floats((args, kwargs), policy.compute)
            with guard.forward() if training else contextlib.nullcontext():
                return cast_floats(original(*args, **kwargs), policy.output)

        return call

    return make


def _inputs_as_they_come(model: keras.Model) -> Callable[[Any], Any]:
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
