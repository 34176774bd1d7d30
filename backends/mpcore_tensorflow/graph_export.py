"""A model written as a SavedModel in which the policy stands as casts, and read back."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from mpcore.errors import GraphError
from mpcore.graph.part import Exported, refuse_after_prepare
from mpcore_tensorflow.casting import is_prepared
from mpcore_tensorflow.graph_build import Built
from mpcore_tensorflow.graph_forward import Lowering, layers_of
from mpcore_tensorflow.graph_plan import device_type, plans_of
from mpcore_tensorflow.graph_proof import prove
from mpcore_tensorflow.graph_rewritten import refuse_parts
from mpcore_tensorflow.graph_run import Runner
from mpcore_tensorflow.graph_trace import Arguments, arguments_of, filled
from mpcore_tensorflow.layers import check_model
from mpcore_tensorflow.snapshot import left_alone

if TYPE_CHECKING:
    from os import PathLike

    import keras

    from mpcore.policy.policy import Policy
    from mpcore_tensorflow.graph_run import Lowered

__all__ = ["export", "largest_difference", "lifted_call", "refuse_prepared"]


def export(
    model: keras.Model, path: str | PathLike[str], policy: Policy, example: Any, /
) -> Exported:
    """Write a SavedModel for inference; see ``mpcore.graph.part.GraphPart``.

    ``serve`` takes the tensors of the example, in order; ``serving_default`` names its outputs.
    """
    refuse_prepared(model)
    target = Path(path)
    if target.suffix or target.exists():
        msg = f"`path` must be a new folder for a SavedModel, got {str(path)!r}" + (
            "; it is there already" if target.exists() else "; leave the ending out"
        )
        raise GraphError(msg)
    args, kwargs = arguments_of(model, example)
    kwargs = {"training": False, **kwargs}
    layers = layers_of(model)
    lowered, any_batch = lifted_call(model, args, kwargs, Lowering(None, layers))
    plans = plans_of(lowered.piece, policy, layers, device_type(), output=policy.output)
    tensors = Arguments(args, {}).tensors
    module = _module(model, lowered, Built(lowered.piece, None, plans))
    with left_alone(model, None):
        expected = _flat(module.serve(*tensors))
    with tempfile.TemporaryDirectory(dir=target.absolute().parent) as folder:
        inner = Path(folder) / "model"
        tf.saved_model.save(module, str(inner), signatures={"serving_default": module.named})
        loaded = tf.saved_model.load(str(inner))  # its functions do not hold its variables
        _check_same(expected, _flat(loaded.serve(*tensors)))
        inner.rename(target)
    with left_alone(model, None):
        full = _flat(model(*args, **kwargs))
    difference = max(
        (largest_difference(a, b) for a, b in zip(full, expected, strict=True)), default=0.0
    )
    checks = (
        f"{_casts(module.serve.get_concrete_function().graph)} casts of floating-point values "
        "stand in its graph",
        "read back: serve() gives the bits that it gave before",
        f"largest difference from float32: {difference:.1e} of the largest value",
        "any batch size" if any_batch else "the batch size of the example alone",
    )
    return Exported(str(target), plans[""], difference, checks)


def lifted_call(
    model: keras.Model, args: tuple[Any, ...], kwargs: dict[str, Any], plain: Lowering
) -> tuple[Lowered, bool]:
    """Return the graph of a call, and whether it takes any batch size."""
    try:
        make = partial(Runner, model, lower=plain, any_batch=True)
        first = prove(model, lambda call: make(original=call), args, [kwargs])
        any_batch = True
    except GraphError:
        first = prove(model, lambda call: Runner(model, call, plain), args, [kwargs])
        any_batch = False
    (lowered,) = first.met.values()
    return lowered, any_batch


def _module(model: keras.Model, lowered: Lowered, built: Built) -> tf.Module:
    """Return what is saved: the graph, under its own structure and with named outputs."""

    def serve(*tensors: Any) -> Any:
        return filled(lowered.traced, built.run(list(tensors)))

    def named(*tensors: Any) -> dict[str, Any]:
        return {f"output_{i}": x for i, x in enumerate(_tensors(serve(*tensors)))}

    module = tf.Module()
    module.kept = [v.value for v in model.variables]
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in lowered.traced.inputs]
    module.serve = tf.function(serve, input_signature=specs, autograph=False)
    module.named = tf.function(named, input_signature=specs, autograph=False)
    return module


def refuse_prepared(model: keras.Model, *, rewritten: bool = False) -> None:
    """Raise GraphError unless a model can be lifted; it may be rewritten itself, if said so."""
    check_model(model)
    refuse_parts(model, rewritten=rewritten)
    if is_prepared(model):
        refuse_after_prepare(model)


def _tensors(value: Any) -> list[Any]:
    return [x for x in tf.nest.flatten(value) if tf.is_tensor(x)]


def _flat(value: Any) -> list[Any]:
    return [np.array(x) for x in _tensors(value)]


def _check_same(expected: list[Any], found: list[Any]) -> None:
    same = len(expected) == len(found) and all(
        a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(expected, found, strict=True)
    )
    if not same:
        msg = "the SavedModel does not give the bits that it was written of; nothing was written"
        raise GraphError(msg)


def _casts(graph: Any) -> int:
    floats = (tf.float32, tf.float16, tf.bfloat16)
    return sum(
        op.type == "Cast" and op.inputs[0].dtype in floats and op.outputs[0].dtype in floats
        for op in graph.get_operations()
    )


def largest_difference(full: Any, found: Any) -> float:
    """Return how far ``found`` is from ``full``, relative to the largest value of ``full``."""
    if full.dtype.kind != "f" or not full.size:
        return 0.0
    size = float(np.max(np.abs(full)))
    return float(np.max(np.abs(full - np.asarray(found, full.dtype)))) / (size or 1.0)
