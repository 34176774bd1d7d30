"""Parameters stored in 16 bits, and the float32 masters made before they are cast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from mpcore.dtypes import is_low
from mpcore.errors import OptimizerError
from mpcore_tensorflow.layers import buffers, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.plan import Plan
    from mpcore_tensorflow.optimizer import TransactionalOptimizer

__all__ = ["cast_variables", "release_variables", "set_storage"]

_LOW = ("float16", "bfloat16")


def cast_variables(
    model: Any, inners: Sequence[Any], plan: Plan, previous: TransactionalOptimizer | None
) -> dict[int, Any]:
    """Store every parameter in the dtype that the plan gives it; return the masters.

    A master takes over the float32 storage of its parameter, so the inner optimizers' slots
    (found by that storage) stay valid, and no value is copied.

    Args:
        model: the model; its Keras variables keep their identity, their storage is new.
        inners: the user's optimizers.
        plan: says the dtype of each layer's parameters.
        previous: the wrapper that the model was trained with before; its masters live on.

    Returns:
        Float32 Keras variables by ``id`` of the 16-bit variable; empty for master="none".

    Raises:
        OptimizerError: there are slots for weights that are to be cast, and no masters.
    """
    wanted = _wanted(model, plan)
    changing = [v for v, dtype in wanted if _dtype(v) != dtype]
    keep = plan.policy.master == "copy"
    if any(x.built for x in inners) and changing and not (keep and previous is None):
        msg = (
            "`optimizer` must be new when weights change their dtype, got one with slots for "
            f"{len(changing)} weights in the former dtype: make a new one"
        )
        raise OptimizerError(msg)
    if previous is None and any(is_low(_dtype(v)) for v, _ in wanted):
        msg = (
            "`optimizer` must be the model's own, which holds the float32 masters of its 16-bit "
            "weights: pass model.optimizer"
        )
        raise OptimizerError(msg)
    masters: dict[int, Any] = {}
    for variable, dtype in wanted:
        if _dtype(variable) == dtype:
            kept = None if previous is None else previous.masters.get(id(variable))
            if kept is not None:
                masters[id(variable)] = kept
            continue
        if keep and is_low(dtype) and variable.trainable:
            masters[id(variable)] = _master(variable)
        set_storage(variable, tf.cast(variable.value, dtype))
    for inner in inners:
        if inner.built and masters:
            inner._trainable_variables = [masters.get(id(v), v) for v in inner._trainable_variables]
    return masters


def release_variables(model: Any, wrappers: Sequence[TransactionalOptimizer]) -> None:
    """Store every parameter in float32 again, and let the inner optimizers move it natively.

    A parameter takes the storage of its master, so that slots found by it stay valid. Without a
    master its 16-bit value and slots are cast up.

    Args:
        model: the model.
        wrappers: its optimizers; their masters are given up.
    """
    masters = {key: m for wrapper in wrappers for key, m in wrapper.masters.items()}
    owners: dict[int, Any] = {}
    inners = [wrapper.inner_optimizer for wrapper in wrappers]
    for variable in {id(v): v for entry in walk(model) for v in entry.variables.values()}.values():
        master = masters.get(id(variable))
        if master is not None:
            variable._value, variable._dtype = master._value, "float32"
            owners[id(master)] = variable
        elif _dtype(variable) in _LOW:
            _cast_up(variable, inners)
    for wrapper in wrappers:
        inner: Any = wrapper.inner_optimizer
        held = [owners.get(id(v), v) for v in inner._trainable_variables]
        inner.__dict__["_trainable_variables"] = held  # Keras would list them among its own state
        for slot in inner.variables:
            if _dtype(slot) in _LOW:  # counts are integers
                set_storage(slot, tf.cast(slot.value, tf.float32))
        wrapper.release()


def _cast_up(variable: Any, inners: Sequence[Any]) -> None:
    keys = [inner._var_key(variable) for inner in inners]
    set_storage(variable, tf.cast(variable.value, tf.float32))
    for inner, key in zip(inners, keys, strict=True):
        indices = inner._trainable_variables_indices if inner.built else {}
        if key in indices:
            indices[inner._var_key(variable)] = indices.pop(key)


def _wanted(model: Any, plan: Plan) -> list[tuple[Any, str]]:
    found = []
    for entry, layer_plan in zip(walk(model), plan.layers, strict=True):
        statistics = {id(v) for v in buffers(entry.layer)}
        for variable in entry.variables.values():
            if id(variable) not in statistics and keras.backend.is_float_dtype(variable.dtype):
                found.append((variable, layer_plan.param or "float32"))
    return found


def _dtype(variable: Any) -> str:
    return str(keras.backend.standardize_dtype(variable.dtype))


def _master(variable: Any) -> Any:
    master = keras.Variable(0.0, shape=(), dtype="float32", name=variable.name)
    master._shape, master._ndim = variable.shape, variable.ndim
    master._value, master.constraint = variable.value, variable.constraint
    return master


def set_storage(variable: Any, value: Any) -> None:
    """Give a Keras variable new storage: ``value``, in the dtype of ``value``.

    The setters of Keras never change a dtype; the two fields are pinned by a test.
    """
    variable._value = tf.Variable(
        value,
        trainable=variable.trainable,
        name=variable.name,
        aggregation=variable._map_aggregation(variable.aggregation),
        synchronization=variable._map_synchronization(variable.synchronization),
    )
    variable._dtype = keras.backend.standardize_dtype(value.dtype)
