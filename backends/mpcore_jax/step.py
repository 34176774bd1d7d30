"""The transaction in JAX: the core's phases, traced once and run by ``jax.jit``."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.nnx.tracers import TraceState

from mpcore.errors import BackendError
from mpcore.step.micro_batches import cut
from mpcore.step.transaction import Transaction
from mpcore_jax.casting import set_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mpcore.numerics.overflow import OverflowDetector
    from mpcore.scaling.loss_scale import LossScale

    Arrays = dict[str, jax.Array]

__all__ = ["JaxTransaction", "Moved", "Optimized", "Parts", "standing_for"]


class Moved(NamedTuple):
    """Everything that a step moves: a tree of arrays, the same before and after.

    Attributes:
        params: what the model stores, by path.
        masters: float32 values behind 16-bit parameters, by path.
        others: statistics, counters of random numbers and all else a forward pass may assign.
        slots: optax state of each optimizer, and how many steps it made, by name.
        scale: fields of the LossScaleState.
    """

    params: Arrays
    masters: Arrays
    others: Arrays
    slots: dict[str, tuple[Any, jax.Array]]
    scale: tuple[jax.Array, ...]


@dataclass(frozen=True)
class Optimized:
    """One optimizer over some of the parameters.

    Attributes:
        tx: the optax transformation.
        names: paths of its parameters, in the order of their tree.
        tree: of the parameters as ``tx`` takes them.
    """

    tx: optax.GradientTransformationExtraArgs
    names: tuple[str, ...]
    tree: Any


@dataclass(frozen=True)
class Parts:
    """What holds for all steps of a prepared model.

    Attributes:
        variables: of the model and of what is restored with it, by path.
        nodes: what holds them.
        optimizers: by name.
        rule: of the loss scale.
        detector: how an overflow is noticed.
        drops: whether bad micro-batches are left out.
    """

    variables: dict[str, nnx.Variable[Any]]
    nodes: tuple[nnx.Pytree, ...]
    optimizers: dict[str, Optimized]
    rule: LossScale
    detector: OverflowDetector
    drops: bool


class JaxTransaction(Transaction):
    """One step on traced arrays; ``moved`` holds them, and at the end what they have become."""

    has_register = False  # inf and NaN show in the values on every device of XLA

    def __init__(self, parts: Parts, moved: Moved, taking: Sequence[str]) -> None:
        """Begin at ``moved`` with the optimizers that take part."""
        self.parts, self.moved, self.taking = parts, moved, taking
        self.rule, self.detector, self.drops = parts.rule, parts.detector, parts.drops
        self.others = moved.others

    def begin(self) -> tuple[Any, Arrays]:
        """Nothing is copied: arrays do not change."""
        return self.moved.scale, self.others

    def differentiate(self, scale: Any, index: int, count: int, *batch: Any) -> tuple[Any, Any]:
        """Run ``batch[0]``, the loss function or several, on the rest or a part of it."""
        losses, *inputs = batch
        rows = inputs if count == 1 else [cut(item, index, count) for item in inputs]
        if not isinstance(losses, dict):
            return self._one(losses, scale, rows, self.taking)
        total, merged = jnp.float32(0), dict[str, Any]()
        for name in self.taking:
            loss, grads = self._one(losses[name], scale, rows, [name])
            total, merged = total + loss, merged | grads
        return total, merged

    def _one(
        self, loss_fn: Callable[..., Any], scale: Any, rows: list[Any], taking: Sequence[str]
    ) -> tuple[Any, Arrays]:
        wanted = {name for key in taking for name in self.parts.optimizers[key].names}
        moving = {name: self.moved.params[name] for name in self.moved.params if name in wanted}

        def scaled(moving: Arrays) -> tuple[Any, tuple[Any, Arrays]]:
            loss, others = self._run(loss_fn, moving, rows)
            return loss * scale, (loss, others)

        grads, (loss, self.others) = jax.grad(scaled, has_aux=True)(moving)
        return loss, grads

    def _run(
        self, loss_fn: Callable[..., Any], moving: Arrays, rows: list[Any]
    ) -> tuple[Any, Arrays]:
        """Let the model's own variables hold traced values while the loss function runs."""
        values = {**self.moved.params, **self.others, **moving}
        with standing_for(self.parts, values):
            loss = check_loss(loss_fn(*rows))
            others = {n: self.parts.variables[n].get_raw_value() for n in self.others}
        for name, value in others.items():
            was = self.others[name]
            if (value.shape, value.dtype) != (was.shape, was.dtype):
                msg = (
                    f"`loss_fn` must leave the variable {name!r} its shape and dtype, "
                    f"{was.dtype}{list(was.shape)}, it made it {value.dtype}{list(value.shape)}"
                )
                raise BackendError(msg)
        return loss, others

    def save_buffers(self) -> Arrays:
        """Nothing is copied: arrays do not change."""
        return self.others

    def check_part(self, grads: Arrays, before: Arrays) -> Any:
        """Look at every element."""
        clean = _all_finite(grads.values())
        self.others = _choose(clean, self.others, before)
        return clean

    def fold(
        self, clean: jax.Array, sums: Any, loss: jax.Array, grads: Arrays
    ) -> tuple[Any, Arrays, Any]:
        """Add up; a bad micro-batch adds nothing."""
        grads = {name: grad.astype(jnp.float32) for name, grad in grads.items()}
        if clean is None:
            total, summed, count = sums
            return total + loss, {n: summed[n] + grad for n, grad in grads.items()}, count
        kept = {n: jnp.where(clean, grad, jnp.float32(0)) for n, grad in grads.items()}
        one = jnp.where(clean, jnp.float32(1), jnp.float32(0))
        if sums is None:
            return loss, kept, one
        total, summed, count = sums
        begun = jnp.where(count > 0, total, jnp.float32(0)) + loss
        total = jnp.where(clean, begun, total)
        return total, {n: summed[n] + grad for n, grad in kept.items()}, count + one

    def unscale(self, grads: Arrays, scale: jax.Array) -> tuple[Arrays, Any, tuple[Any, ...]]:
        """Multiply by 1 / scale in float32; look at every element."""
        # One float32 division rounds as one in double and a second rounding: 53 >= 2 * 24 + 2 bits.
        factor = jnp.float32(1) / scale
        # In the model's order, which names the norms outside: a trace sorts dicts by their keys.
        order = [name for name in self.parts.variables if name in grads]
        true = {name: grads[name].astype(jnp.float32) * factor for name in order}
        norms = jnp.stack([jnp.sqrt(jnp.sum(jnp.square(grad))) for grad in true.values()])
        own = [self.parts.optimizers[key].names for key in self.taking]
        return true, norms, tuple(_all_finite([true[n] for n in names]) for names in own)

    def total_norms(self, grads: Arrays, norms: jax.Array) -> tuple[Any, ...]:
        """Return the norm of all, or that of each optimizer that is judged alone."""
        each = dict(zip(grads, norms, strict=True))
        return tuple(
            jnp.sqrt(sum(jnp.square(each[name]) for name in names)) for names in self._judged(grads)
        )

    def multiply(self, grads: Arrays, factors: tuple[Any, ...]) -> Arrays:
        """Multiply in float32."""
        judged = zip(self._judged(grads), factors, strict=True)
        return {name: grads[name] * factor for names, factor in judged for name in names}

    def _judged(self, grads: Arrays) -> list[tuple[str, ...]]:
        if self.rule.skip_scope == "optimizer":
            return [self.parts.optimizers[key].names for key in self.taking]
        return [tuple(grads)]

    def commit(
        self, stepped: tuple[Any, ...], finite: Any, grads: Arrays, saved: Arrays, new: Any
    ) -> Any:
        """Choose between the arrays before and those after: nothing is written."""
        params, masters = dict(self.moved.params), dict(self.moved.masters)
        slots = dict(self.moved.slots)
        for key, takes in zip(self.taking, stepped, strict=True):
            names = self.parts.optimizers[key].names
            truth = {n: masters.get(n, params[n]) for n in names}
            after = jax.lax.cond(
                takes,
                lambda t, s, g, key=key: self._update(key, t, s, g),
                lambda t, s, g: (t, s),
                truth,
                slots[key],
                {n: grads[n] for n in names},
            )
            moved, slots[key] = after
            params |= {n: value.astype(params[n].dtype) for n, value in moved.items()}
            masters |= {n: value for n, value in moved.items() if n in masters}
        others = _choose(finite, self.others, saved)
        scale = tuple(
            jnp.asarray(value, was.dtype) for value, was in zip(new, self.moved.scale, strict=True)
        )
        self.moved = Moved(params, masters, others, slots, scale)
        return scale[0]

    def _update(self, key: str, truth: Arrays, slots: Any, grads: Arrays) -> tuple[Arrays, Any]:
        """Run one optimizer on float32 values, as ``nnx.Optimizer.update`` does."""
        own = self.parts.optimizers[key]
        tree = own.tree.unflatten([truth[name] for name in own.names])
        slopes = own.tree.unflatten([grads[name] for name in own.names])
        updates, state = own.tx.update(slopes, slots[0], tree)
        after = own.tree.flatten_up_to(optax.apply_updates(tree, updates))
        state = jax.tree.map(lambda new, was: jnp.asarray(new, was.dtype), state, slots[0])
        return dict(zip(own.names, after, strict=True)), (state, slots[1] + 1)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Choose on the device."""
        return jnp.where(condition, x, y)


@contextmanager
def standing_for(parts: Parts, values: Arrays) -> Iterator[None]:
    """Let the variables hold ``values`` in the trace that runs; then all is as it was.

    Raises:
        BackendError: an attribute was given to the model that would outlive its trace.
    """
    here = TraceState()
    held = {n: (v.get_raw_value(), v._trace_state) for n, v in parts.variables.items()}
    graph = [(node, node._pytree__state.trace_state, dict(vars(node))) for node in parts.nodes]
    try:
        for name, variable in parts.variables.items():
            set_value(variable, values[name], here)
        for node, _, _ in graph:
            node._pytree__state._trace_state = here
        yield
        for node, _, before in graph:
            _check_kept(node, before)
    finally:
        for node, trace, before in graph:
            node._pytree__state._trace_state = trace
            vars(node).clear()
            vars(node).update(before)
        for name, (value, trace) in held.items():
            set_value(parts.variables[name], value, trace)


def _check_kept(node: nnx.Pytree, before: dict[str, Any]) -> None:
    for name, value in vars(node).items():
        if value is not before.get(name) and isinstance(
            value, jax.Array | nnx.Pytree | nnx.Variable
        ):
            msg = (
                f"`loss_fn` must not give the model new parts while it is traced, it made "
                f"{type(node).__name__}.{name}; make the variable before `prepare`"
            )
            raise BackendError(msg)


def check_loss(loss: Any) -> jax.Array:
    """Return a loss in float32; BackendError unless it is one number."""
    shape = getattr(loss, "shape", () if isinstance(loss, float) else None)
    if shape != () or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        got = f"an array of shape {shape}" if shape else f"{type(loss).__name__}"
        msg = f"`loss_fn` must return one number, a scalar loss, got {got}; return its mean, say"
        raise BackendError(msg)
    return jnp.asarray(loss, jnp.float32)


def _all_finite(values: Any) -> Any:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(value)) for value in values]))


def _choose(condition: Any, x: Arrays, y: Arrays) -> Arrays:
    chosen: Arrays = jax.lax.cond(condition, lambda a, b: a, lambda a, b: b, x, y)
    return chosen
