"""The prepared nnx model that people hold."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from mpcore._lib.interrupts import raise_late
from mpcore.amp.amp import Amp
from mpcore.backend.backend import refuse_shared
from mpcore.errors import BackendError
from mpcore.numerics.dtypes import is_low
from mpcore.numerics.overflow import OverflowDetector, find_detector
from mpcore.scaling.transition import LossScaleState, initial_state
from mpcore.step.result import StepResult, StepValues
from mpcore_jax import layouts
from mpcore_jax.casting import apply_plan, set_value
from mpcore_jax.modules import layers, nodes, variables
from mpcore_jax.step import JaxTransaction, Moved, Optimized, Parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.policy.plan import Plan
    from mpcore.step.transaction import StepCall, StepOptions

__all__ = ["JaxAmp"]

_KEPT = 16
"""Compiled steps that are kept, one for each loss function and way to call it."""


class JaxAmp(Amp):
    """A prepared nnx model.

    ``loss_fn(*batch)`` runs the model that it closes over, as in every framework; it is traced
    once and compiled with the whole transaction by ``jax.jit``, also where the shapes of a batch
    change. What it reads besides the model, the batch and ``restore_on_skip`` is a constant of the
    trace. ``with jax.disable_jit():`` runs steps operation by operation.

    A step makes new arrays beside the old ones: memory for parameters, optimizer state and
    statistics twice while it runs. Statistics, and counters of random numbers in the model, are
    put back by a skipped step.
    """

    def __init__(
        self,
        model: nnx.Module,
        optimizers: Mapping[str, nnx.Optimizer[Any]],
        plan: Plan,
        options: StepOptions,
        *,
        simulated: bool,
    ) -> None:
        """Apply the plan to the model and read what its steps move."""
        super().__init__(plan, optimizers, simulated=simulated)
        self.model = model
        rule = plan.policy.scaling
        kinds = {"values": OverflowDetector()}
        detector = find_detector(options.detector, kinds, "values")
        self._variables = variables(model) | _guarded(options.restore_on_skip)
        self._params = _trained_or_frozen(model, plan)
        optimized = {n: _optimized(model, o, self._variables) for n, o in optimizers.items()}
        refuse_shared({key: ((name, name) for name in own.names) for key, own in optimized.items()})
        drops = options.on_bad_micro_batch == "drop"
        held = tuple(n for part in (model, *options.restore_on_skip) for n in nodes(part))
        self._parts = Parts(self._variables, held, optimized, rule, detector, drops)
        self._after_step = options.after_step
        self._steps: dict[Any, Callable[..., Any]] = {}
        self._released = False
        # Nothing is refused from here on.
        self._masters: dict[str, jax.Array] = {}
        self._seen: dict[str, jax.Array] = {}  # what the 16-bit parameters were made to hold
        for path, dtype in self._params.items():
            variable = self._variables[path]
            value = variable.get_raw_value()
            set_value(variable, value.astype(dtype))
            if is_low(dtype) and plan.policy.scheme.name == "copy":
                self._masters[path] = value
                self._seen[path] = variable.get_raw_value()
        self._state = _on_device(initial_state(rule))
        self._take_back = apply_plan(model, plan)
        for optimizer in optimizers.values():
            object.__setattr__(optimizer, "__class__", _Guarded)
            _AMPS[id(optimizer)] = weakref.ref(self)

    @property
    def optimizer(self) -> nnx.Optimizer[Any]:
        """The optimizer, if there is one alone."""
        only: nnx.Optimizer[Any] = self._only_optimizer()
        return only

    @property
    def state(self) -> LossScaleState:
        """State of the loss scale; reading it waits for the device."""
        scale, *counts = jax.device_get(self._state)
        return LossScaleState(float(scale), *(int(count) for count in counts))

    @state.setter
    def state(self, state: LossScaleState) -> None:
        self._state = _on_device(state)

    @property
    def released(self) -> bool:
        """Whether ``release`` was called."""
        return self._released

    def release(self) -> None:
        """Give the model its classes and its float32 values back."""
        if self._released:
            return
        self._take_back()
        for path, dtype in self._params.items():
            if is_low(dtype):
                value = self._masters.get(path, self._variables[path].get_raw_value())
                set_value(self._variables[path], value.astype(jnp.float32))
        for optimizer in self.optimizers.values():
            object.__setattr__(optimizer, "__class__", nnx.Optimizer)
            _AMPS.pop(id(optimizer), None)
        self._steps.clear()
        self._released = True

    def _step(
        self, loss_fn: Callable[..., Any], batch: tuple[Any, ...], call: StepCall
    ) -> StepResult:
        if self._released:
            msg = "`step` must not be called after `release`: prepare the model again"
            raise BackendError(msg)
        before = self._moved()
        values, grads, moved = self._compiled(loss_fn, call)(before, batch)
        names = {n for key in call.optimizers for n in self._parts.optimizers[key].names}
        ordered = [name for name in self._variables if name in names]
        done = StepValues(*values)
        result = StepResult(done, ordered, np.asarray, grads or None, call.optimizers)
        self.held.now()
        self._put(moved)
        late = self._follow(result, before)
        if late:
            self._done(result)
            raise_late(late)
        return result

    def _follow(self, result: StepResult, before: Moved) -> list[BaseException]:
        """Make the calls of ``after_step``; the first that fails takes the step back."""
        late: list[BaseException] = []
        if self._after_step and result.stepped:
            for number, follow in enumerate(self._after_step):
                try:
                    follow()
                except BaseException as error:
                    if not number:
                        self._put(before)
                        raise
                    late.append(error)
        return late

    def _compiled(self, loss_fn: Callable[..., Any], call: StepCall) -> Callable[..., Any]:
        key = (tuple(loss_fn.items()) if isinstance(loss_fn, dict) else loss_fn, call)
        if key not in self._steps:
            if len(self._steps) >= _KEPT:  # a lambda in a loop is another function each time
                self._steps.pop(next(iter(self._steps)))
            self._steps[key] = jax.jit(partial(_transact, self._parts, call, loss_fn))
        return self._steps[key]

    def _moved(self) -> Moved:
        held = {name: v.get_raw_value() for name, v in self._variables.items()}
        for name, seen in self._seen.items():
            if held[name] is not seen:  # an array never changes: somebody has assigned another one
                self._take(name, held[name])
        return Moved(
            {name: held[name] for name in self._params},
            self._masters,
            {name: value for name, value in held.items() if name not in self._params},
            {
                name: (nnx.as_pure(own.opt_state), own.step.get_raw_value())
                for name, own in self.optimizers.items()
            },
            self._state,
        )

    def _take(self, name: str, value: jax.Array) -> None:
        """Let a parameter stand for the 16-bit value that it was given, unless it did before."""
        if not jnp.array_equal(value, self._masters[name].astype(value.dtype), equal_nan=True):
            self._masters[name] = value.astype(jnp.float32)
        self._seen[name] = value

    def _put(self, moved: Moved) -> None:
        for name, value in (moved.params | moved.others).items():
            set_value(self._variables[name], value)
        self._masters = dict(moved.masters)
        self._seen = {name: moved.params[name] for name in self._masters}
        for name, (state, steps) in moved.slots.items():
            optimizer = self.optimizers[name]
            held = jax.tree.leaves(optimizer.opt_state, is_leaf=_is_variable)
            for variable, value in zip(held, jax.tree.leaves(state), strict=True):
                set_value(variable, value)
            set_value(optimizer.step, steps)
        self._state = moved.scale

    def gradient(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Return the gradient of ``function(*inputs).sum()``; see ``Amp.gradient``."""
        first, *rest = inputs
        scale = self._state[0]

        def total(x: Any) -> Any:
            return jnp.sum(function(x, *rest).astype(jnp.float32)) * scale

        return jax.grad(total)(jnp.asarray(first, jnp.float32)) / scale

    def _read_weights(self) -> dict[str, npt.NDArray[np.float32]]:
        self._moved()  # takes what was assigned
        found = {}
        for name, variable in self._variables.items():
            value = self._masters.get(name, variable.get_raw_value())
            if jnp.issubdtype(value.dtype, jnp.floating):
                found[name] = np.array(value, np.float32)
        return found

    def _write_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        for name, value in weights.items():
            variable = self._variables[name]
            set_value(variable, jnp.array(value, variable.get_raw_value().dtype))
            if name in self._masters:
                self._masters[name] = jnp.array(value)
                self._seen[name] = variable.get_raw_value()

    def _master_shapes(self, *, every: bool = False) -> dict[str, tuple[int, ...]]:
        names = self._params if every else self._masters
        return {name: tuple(self._variables[name].shape) for name in names}

    def _read_layers(self) -> list[LayerWeights]:
        return layouts.read(layers(self.model), self._read_weights())

    def _write_layers(self, weights: list[LayerWeights]) -> None:
        self._write_weights(layouts.write(layers(self.model), self._read_weights(), weights))

    def slots(self) -> dict[str, dict[str, npt.NDArray[np.float32]]]:
        """Return arrays of the only optimizer's state that are like its parameters.

        By the field of optax's state that holds them (``"mu"``), then by the parameter's path.
        """
        found: dict[str, dict[str, npt.NDArray[np.float32]]] = {}
        for field, name, variable in self._slot_places():
            found.setdefault(field, {})[name] = np.array(variable.get_raw_value(), np.float32)
        return found

    def load_slots(
        self, arrays: Mapping[str, Mapping[str, npt.NDArray[np.float32]]], steps: int
    ) -> None:
        """Put in what ``slots`` returns, and the number of steps made."""
        for field, name, variable in self._slot_places():
            if name in arrays.get(field, {}):
                dtype = variable.get_raw_value().dtype
                set_value(variable, jnp.array(arrays[field][name], dtype))
        for path, variable in jax.tree_util.tree_leaves_with_path(
            self.optimizer.opt_state, is_leaf=_is_variable
        ):
            if _field(path) == "count":
                set_value(variable, jnp.array(steps, variable.get_raw_value().dtype))
        set_value(self.optimizer.step, jnp.array(steps, jnp.uint32))

    def _slot_places(self) -> list[tuple[str, str, nnx.Variable[Any]]]:
        (own,) = self._parts.optimizers.values()
        leaves = jax.tree_util.tree_leaves_with_path(self.optimizer.opt_state, is_leaf=_is_variable)
        by_field: dict[str, list[Any]] = {}
        for path, variable in leaves:
            by_field.setdefault(_field(path), []).append(variable)
        return [
            (field, name, variable)
            for field, found in by_field.items()
            if len(found) == len(own.names)
            for name, variable in zip(own.names, found, strict=True)
        ]

    def array_bytes(self) -> dict[str, int]:
        """Return the bytes between steps, by kind; see ``Amp.array_bytes``."""
        moved = self._moved()
        trained = {n for own in self._parts.optimizers.values() for n in own.names}
        parts = {
            "parameters": moved.params,
            "masters": moved.masters,
            "optimizer": [state for state, _ in moved.slots.values()],
        }
        count = {name: sum(x.nbytes for x in jax.tree.leaves(t)) for name, t in parts.items()}
        made = 0 if self.last is None else sum(moved.params[n].nbytes for n in trained)
        return count | {"gradients": made}


def _transact(
    parts: Parts, call: StepCall, loss_fn: Callable[..., Any], moved: Moved, batch: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, jax.Array], Moved]:
    tx = JaxTransaction(parts, moved, call.optimizers)
    *values, grads = tx.transact(call, loss_fn, *batch)
    return tuple(values), grads if call.keep_grads else {}, tx.moved


class _Guarded(nnx.Optimizer[Any]):  # type: ignore[misc]
    """The class of an optimizer for as long as it belongs to a prepared model."""

    def update(self, model: Any, grads: Any = None, /, **kwargs: Any) -> Any:
        """Refuse, unless somebody has said that it is meant."""
        amp = _AMPS[id(self)]()
        if amp is not None:
            amp.guard.check("`optimizer.update()`", "call `amp.step(loss_fn, ...)`")
        return super().update(model, grads, **kwargs)


_AMPS: dict[int, weakref.ref[JaxAmp]] = {}


def _on_device(state: LossScaleState) -> tuple[jax.Array, ...]:
    scale, *counts = state
    return jnp.float32(scale), *(jnp.int32(count) for count in counts)


def _field(path: tuple[Any, ...]) -> str:
    """Return the innermost named field on a path through an optax state, such as "mu"."""
    names = [part.name for part in path if isinstance(part, jax.tree_util.GetAttrKey)]
    return names[-1] if names else ""


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def _trained_or_frozen(model: nnx.Module, plan: Plan) -> dict[str, str]:
    """Return the dtype in which each parameter is stored, by path."""
    found: dict[str, str] = {}
    for path, layer, category in layers(model):
        if category == "container":
            continue
        for name, variable in variables(layer, path).items():
            is_param = isinstance(variable, nnx.Param)
            if is_param and jnp.issubdtype(variable.get_raw_value().dtype, jnp.floating):
                found.setdefault(name, plan[path].param or "float32")
    for name, variable in variables(model).items():
        if isinstance(variable, nnx.Param):
            found.setdefault(name, str(variable.get_raw_value().dtype))
    return found


def _optimized(
    model: nnx.Module, optimizer: nnx.Optimizer[Any], known: Mapping[str, nnx.Variable[Any]]
) -> Optimized:
    """Return the parameters of one optimizer by our paths, in the order of its own tree."""
    names = {id(variable): name for name, variable in known.items()}
    places = nnx.graph.iter_graph(model)
    at = {path: names[id(node)] for path, node in places if isinstance(node, nnx.Variable)}
    state = nnx.state(model, optimizer.wrt)
    paths = [tuple(path) for path, _ in nnx.to_flat_state(state)]
    tree = jax.tree.structure(nnx.as_pure(state))
    return Optimized(optimizer.tx, tuple(at[path] for path in paths), tree)


def _guarded(entries: tuple[Any, ...]) -> dict[str, nnx.Variable[Any]]:
    found: dict[str, nnx.Variable[Any]] = {}
    for number, entry in enumerate(entries):
        inside = variables(entry, f"restore_on_skip[{number}]")
        if not inside:
            kind = type(entry).__name__
            msg = f"`restore_on_skip` must hold nnx modules or variables, got {kind}"
            raise BackendError(msg)
        found |= inside
    return found
