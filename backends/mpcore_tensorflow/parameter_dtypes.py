"""Parameters stored in 16 bits, and the float32 masters made before they are cast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from mpcore.errors import OptimizerError
from mpcore.numerics.dtypes import is_low
from mpcore.numerics.master_weights import MasterWeights
from mpcore_tensorflow.layers import buffers, variable_names, walk
from mpcore_tensorflow.master_weights import (
    CopiedMaster,
    MasterState,
    make_master_state,
    restore_assignments,
)
from mpcore_tensorflow.storage import set_storage
from mpcore_tensorflow.stored_low import CameLow, StoredLow, mix_policies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.policy.plan import Plan
    from mpcore_tensorflow.optimizer import TransactionalOptimizer

__all__ = ["cast_variables", "release_variables"]

_LOW = ("float16", "bfloat16")


def cast_variables(
    model: keras.Model,
    inners: Sequence[Any],
    plan: Plan,
    previous: TransactionalOptimizer | None,
    came: CameLow,
) -> dict[int, MasterState]:
    """Store every parameter in the dtype that the plan gives it; return its master-weight state.

    One parameter after the other, so that one is in memory twice. A copy takes over the float32
    storage of its parameter, and under the other schemes the 16-bit storage its identity: so the
    inner optimizers' slots, and what they leave out of weight decay, stay valid.

    Args:
        model: the model; its Keras variables keep their identity, their storage is new.
        inners: the user's optimizers.
        plan: says the dtype of each layer's parameters.
        previous: the wrapper that the model was trained with before; its masters live on.
        came: what was in 16 bits before any ``prepare``.

    Returns:
        Master-weight states by ``id`` of the 16-bit variable, of frozen ones too; for
        master="none" only those that came in 16 bits.

    Raises:
        OptimizerError: there are slots for weights that are to be cast, and no masters; or the
            weights are in 16 bits already, under another scheme. Nothing has changed.
        BackendError: frozen weights came in the other 16-bit format. Nothing has changed.
    """
    every = _wanted(model, plan)
    came.check_kept(every, variable_names(model))
    wanted = [(v, dtype) for v, dtype in every if id(v) not in came.frozen]
    changing = [v for v, dtype in wanted if _will_be(v, came) != dtype]
    scheme = plan.policy.scheme
    keeps = scheme.name != "none"
    if any(x.built for x in inners) and changing and not (keeps and previous is None):
        msg = (
            "`optimizer` must be new when weights change their dtype, got one with slots for "
            f"{len(changing)} weights in the former dtype: make a new one"
        )
        raise OptimizerError(msg)
    low = [v for v, _ in wanted if is_low(_will_be(v, came))]
    if previous is None and low:
        msg = (
            "`optimizer` must be the model's own, which holds the float32 masters of its 16-bit "
            "weights: pass model.optimizer"
        )
        raise OptimizerError(msg)
    if previous is not None and low and MasterWeights.parse(previous.master) != scheme:
        msg = (
            f"`master` must stay {previous.master!r} for weights that are in 16 bits already, got "
            f"{plan.policy.master!r}: call amp.release() first, which makes them float32 again"
        )
        raise OptimizerError(msg)
    came.widen(model, inners)
    known = {} if previous is None else previous.master_states
    masters: dict[int, MasterState] = {}
    loaded = 0
    for variable, dtype in every:
        if id(variable) in came.frozen:
            if is_low(dtype):  # a file of it has 16 bits too, and a place among the frozen
                masters[id(variable)] = came.frozen[id(variable)]
                loaded += 1
        elif _dtype(variable) != dtype:
            _cast(variable, dtype, scheme, masters)
        elif keeps and is_low(dtype) and id(variable) in known:
            masters[id(variable)] = known[id(variable)]
        elif keeps and is_low(dtype):
            masters[id(variable)] = _frozen_master(variable, scheme, previous, loaded)
            loaded += 1
    masters |= came.frozen  # the others behind them
    copies = {key: one.master for key, one in masters.items() if isinstance(one, CopiedMaster)}
    for inner in inners:
        if inner.built and copies:
            _let_move(inner, copies)
    return masters


def _let_move(inner: keras.Optimizer, instead: dict[int, Any]) -> None:
    """Let a built optimizer move other variables; Keras' setter would make them its own state."""
    moved = [instead.get(id(v), v) for v in inner._trainable_variables]
    inner.__dict__["_trainable_variables"] = moved


def _cast(
    variable: keras.Variable, dtype: str, scheme: MasterWeights, masters: dict[int, MasterState]
) -> None:
    """Store a float32 variable as ``dtype``; its master-weight state goes into ``masters``."""
    before = variable._value
    if scheme.name == "none" or not is_low(dtype):
        set_storage(variable, tf.cast(before, dtype))
        return
    if scheme.name == "copy":
        master = _master(variable)
        set_storage(variable, tf.cast(before, dtype))
        copied = CopiedMaster(variable, scheme.rounding, master)
        copied.lower()
        masters[id(variable)] = copied
    else:
        set_storage(variable, tf.cast(before, dtype), like=before)
        one = make_master_state(scheme, variable)
        one.put(tf.convert_to_tensor(before))
        masters[id(variable)] = one


def _frozen_master(
    variable: keras.Variable,
    scheme: MasterWeights,
    previous: TransactionalOptimizer | None,
    place: int,
) -> MasterState:
    """Return the master-weight state of a weight that was loaded, with what was saved of them."""
    master = make_master_state(scheme, variable)
    saved = None if previous is None else previous.loaded_frozen(place, master)
    if saved is None:
        master.put(tf.cast(variable.value, tf.float32))
        return master
    for stored, array in zip(master.beside, saved, strict=True):
        stored.value.assign(array)
    return master


def release_variables(model: keras.Model, wrappers: Sequence[TransactionalOptimizer]) -> None:
    """Store every parameter in float32 again, and let the inner optimizers move it natively.

    Frozen ones that came in 16 bits stay so. A parameter takes the storage of its copy, or the
    identity that its own had, so that slots found by it stay valid. Without master values its
    16-bit value and slots are cast up.

    Args:
        model: the model.
        wrappers: its optimizers; their master weights are given up.
    """
    masters = {key: one for wrapper in wrappers for key, one in wrapper.master_states.items()}
    owners: dict[int, Any] = {}
    inners = [wrapper.inner_optimizer for wrapper in wrappers]
    statistics = {id(v) for v in buffers(model)}
    for variable in {id(v): v for entry in walk(model) for v in entry.variables.values()}.values():
        one = masters.get(id(variable))
        restore_assignments(variable)
        if isinstance(one, StoredLow) or id(variable) in statistics:
            continue
        if isinstance(one, CopiedMaster):
            variable._value, variable._dtype = one.master._value, "float32"
            owners[id(one.master)] = variable
        elif one is not None:
            set_storage(variable, one.open(), like=variable._value)
        elif _dtype(variable) in _LOW:
            _cast_up(variable, inners)
    for wrapper in wrappers:
        inner: Any = wrapper.inner_optimizer
        _let_move(inner, owners)
        for slot in inner.variables:
            if _dtype(slot) in _LOW:  # counts are integers
                set_storage(slot, tf.cast(slot.value, tf.float32))
        wrapper.release()
    mix_policies(model)


def _cast_up(variable: keras.Variable, inners: Sequence[Any]) -> None:
    keys = [inner._var_key(variable) for inner in inners]
    set_storage(variable, tf.cast(variable.value, tf.float32))
    for inner, key in zip(inners, keys, strict=True):
        indices = inner._trainable_variables_indices if inner.built else {}
        if key in indices:
            indices[inner._var_key(variable)] = indices.pop(key)


def _wanted(model: keras.Model, plan: Plan) -> list[tuple[Any, str]]:
    found = []
    for entry, layer_plan in zip(walk(model), plan.layers, strict=True):
        statistics = {id(v) for v in buffers(entry.layer)}
        for variable in entry.variables.values():
            if id(variable) not in statistics and keras.backend.is_float_dtype(variable.dtype):
                found.append((variable, layer_plan.param or "float32"))
    return found


def _will_be(variable: keras.Variable, came: CameLow) -> str:
    return "float32" if id(variable) in came.trained else _dtype(variable)


def _dtype(variable: keras.Variable) -> str:
    return str(keras.backend.standardize_dtype(variable.dtype))


def _master(variable: keras.Variable) -> Any:
    master = keras.Variable(0.0, shape=(), dtype="float32", name=variable.name)
    master._shape, master._ndim = variable.shape, variable.ndim
    master._value, master.constraint = variable.value, variable.constraint
    return master
