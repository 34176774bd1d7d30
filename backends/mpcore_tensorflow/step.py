"""The transaction of one step in TensorFlow."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import tensorflow as tf

from mpcore.errors import BackendError, MpcoreWarning
from mpcore.numerics.overflow import OverflowDetector
from mpcore.step.transaction import Settlement, Transaction
from mpcore_tensorflow import gradients, replicas
from mpcore_tensorflow.ascend import unsaturated
from mpcore_tensorflow.stagnation import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import keras

    from mpcore.scaling.transition import LossScale
    from mpcore_tensorflow.buffers import BufferGuard, Handle, Snapshot
    from mpcore_tensorflow.gradients import Gradient

__all__ = [
    "AssignedError",
    "KerasTransaction",
    "OptimizerBinding",
    "StepTransaction",
    "SteppedOptimizer",
]


class SteppedOptimizer(Protocol):
    """What a step asks of a TransactionalOptimizer."""

    rule: LossScale
    dynamic_scale: keras.Variable
    counts: keras.Variable

    @property
    def guard(self) -> BufferGuard | None:
        """The model's buffers."""
        ...

    def stored_values(self, variable: keras.Variable) -> list[tf.Variable]:
        """Return what changes unless an update of ``variable`` underflows."""
        ...

    def update(self, grads: list[Gradient], variables: list[keras.Variable]) -> None:
        """Update by true gradients."""
        ...

    def update_replicas(
        self,
        strategy: tf.distribute.Strategy,
        grads: list[Gradient],
        variables: list[keras.Variable],
    ) -> None:
        """Do so in every replica, by gradients summed over them."""
        ...

    def count_step(self, stepped: tf.Tensor) -> None:
        """Count a step that was taken."""
        ...

    def count_skipped(self) -> None:
        """Let a skipped step count for the schedule of the learning rate."""
        ...


class OptimizerBinding(NamedTuple):
    """One optimizer and the variables that it moves."""

    optimizer: SteppedOptimizer
    variables: list[keras.Variable]


class KerasTransaction(Settlement):
    """The primitives that judge and commit; gradients are tensors, IndexedSlices or None.

    They run eagerly and in ``tf.function`` alike. Under a strategy of several replicas they run
    outside the replicas, over gradients that were summed; only the update runs in each.
    """

    def __init__(
        self,
        optimizer: SteppedOptimizer,
        variables: list[keras.Variable],
        *others: OptimizerBinding,
        detector: OverflowDetector | None = None,
        after_step: tuple[Callable[[], Any], ...] = (),
        strategy: tf.distribute.Strategy | None = None,
        counts_lost: bool = False,
    ) -> None:
        """Bind the phases to the trainable ``variables`` of one step.

        Args:
            optimizer: holds the rule, the state, the masters and the buffer guard.
            variables: what it moves, in the order of the gradients.
            others: further optimizers, whose gradients follow.
            detector: how an overflow is noticed; None for by values.
            after_step: called after a step of all optimizers.
            strategy: the strategy, if it has several replicas.
            counts_lost: count the updates that rounding lost.
        """
        self.rule = optimizer.rule
        self.optimizer = optimizer
        self.guard = optimizer.guard
        self.bound = (OptimizerBinding(optimizer, list(variables)), *others)
        self.variables = [variable for each in self.bound for variable in each.variables]
        self.detector = detector or OverflowDetector()
        self.has_register = self.detector.kind == "status_register"
        self.strategy = strategy
        self.counts_lost = counts_lost
        self.lost: Any = None
        self._after_step = tuple(_with_autograph(function) for function in after_step)

    def settle(self, *args: Any) -> tuple[Any, Any, Any, Any]:
        """Judge, then commit or restore; an emulated device leaves this arithmetic alone."""
        with unsaturated():
            return super().settle(*args)

    def scale_state(self) -> Any:
        """Read the scale, a number unless it is dynamic, and the counts."""
        scale: Any = self.rule.init_scale
        if self.rule.kind == "dynamic":
            scale = tf.convert_to_tensor(self.optimizer.dynamic_scale.value)
        return (scale, *tf.unstack(tf.convert_to_tensor(self.optimizer.counts.value)))

    def unscale(
        self, grads: list[Gradient], scale: tf.Tensor | float
    ) -> tuple[Any, Any, tuple[Any, ...]]:
        """Cast to float32 and divide; rows of a sparse gradient that repeat are summed first."""
        divisor = None if isinstance(scale, float) and scale == 1.0 else scale
        true = [gradients.unscaled(grad, divisor) for grad in grads]
        norms = self._norms(true)
        return true, norms, self._all_finite(true, norms)

    def _norms(self, grads: list[Gradient]) -> Any:
        """Return the L2 norms; a missing gradient counts as zero."""
        if not grads:
            return tf.zeros((0,), tf.float32)
        zero = tf.constant(0.0)
        halves = [zero if g is None else tf.nn.l2_loss(gradients.values(g)) for g in grads]
        return tf.sqrt(2.0 * tf.stack(halves))

    def _all_finite(self, grads: list[Gradient], norms: tf.Tensor) -> tuple[Any, ...]:
        """Finite norms prove it; else look at every element, as a finite one may square to inf."""
        owned = self._by_optimizer(grads)

        def exact() -> Any:
            return tf.stack([gradients.all_finite(own) for own in owned])

        quick = tf.math.is_finite(tf.reduce_sum(norms))
        verdicts = tf.cond(quick, lambda: tf.fill((len(owned),), True), exact)
        return tuple(tf.unstack(verdicts))

    def total_norms(self, grads: list[Gradient], norms: tf.Tensor) -> tuple[Any, ...]:
        """Return the norm of all, or that of each optimizer that is judged alone."""
        if self.rule.skip_scope == "all":
            return (tf.norm(norms),)
        sizes = [len(each.variables) for each in self.bound]
        return tuple(tf.norm(lengths) for lengths in tf.split(norms, sizes))

    def multiply(self, grads: list[Gradient], factors: tuple[Any, ...]) -> Any:
        """Multiply each tensor, or the values of IndexedSlices."""
        owned = [grads] if len(factors) == 1 else self._by_optimizer(grads)
        return [
            _times(grad, factor) for own, factor in zip(owned, factors, strict=True) for grad in own
        ]

    def commit(
        self,
        stepped: tuple[Any, ...],
        finite: tf.Tensor,
        grads: list[Gradient],
        saved: Snapshot | None,
        new: tuple[Any, ...],
    ) -> Any:
        """Update weights, slots and counts in one branch, restore the buffers in the other."""
        if saved is not None and self.guard is not None:
            self.missed(self.guard.unknown(saved.close()))
        owned = self._by_optimizer(grads)
        if all(verdict is finite for verdict in stepped):
            self.lost = tf.cond(finite, lambda: self._take(owned), lambda: self._leave(saved))
            self.optimizer.count_step(finite)
            return self._store(new)
        # The buffers go first: an optimizer that steps may move what else is guarded.
        self.restore_unless(finite, saved)
        lost = []
        for verdict, part, own in zip(stepped, self.bound, owned, strict=True):
            lost.append(tf.cond(verdict, self._updating(part, own), self._counting(part)))
        self.lost = tf.concat(lost, axis=0)
        self.optimizer.count_step(tf.reduce_any(tf.stack(stepped)))
        tf.cond(finite, self._follow, _nothing)
        return self._store(new)

    def missed(self, variables: list[Handle]) -> None:
        """Say which variables were assigned and are not put back."""
        if variables:
            warnings.warn(_told(variables), MpcoreWarning, stacklevel=2)

    def restore_unless(self, finite: tf.Tensor, before: Snapshot | None) -> None:
        """Assign the buffers in one branch."""
        if before is not None and before.close().assigned():
            tf.cond(finite, _nothing, lambda: _restored(before))

    def where(self, condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> Any:
        """Choose by value."""
        return tf.where(condition, x, y)

    def _store(self, new: tuple[Any, ...]) -> Any:
        """Assign the state that can have changed; TensorFlow keeps the order of assignments."""
        scale, *counts = new
        self.optimizer.counts.value.assign(tf.stack(counts))
        if self.rule.kind == "dynamic":
            self.optimizer.dynamic_scale.value.assign(scale)
        return scale

    def _by_optimizer(self, grads: list[Any]) -> list[list[Any]]:
        rest = iter(grads)
        return [[next(rest) for _ in each.variables] for each in self.bound]

    def _take(self, owned: list[list[Any]]) -> Any:
        pairs = zip(self.bound, owned, strict=True)
        lost = [self._update(part, own) for part, own in pairs]
        self._follow()
        return tf.concat(lost, axis=0)

    def _leave(self, saved: Snapshot | None) -> Any:
        if saved is not None:
            saved.restore()
        return tf.concat([self._count(each) for each in self.bound], axis=0)

    def _updating(self, part: OptimizerBinding, own: list[Any]) -> Callable[[], Any]:
        return lambda: self._update(part, own)

    def _counting(self, part: OptimizerBinding) -> Callable[[], Any]:
        return lambda: self._count(part)

    def _update(self, part: OptimizerBinding, own: list[Any]) -> Any:
        """Step; return (lost updates, updates looked at) of each variable, shape (n, 2)."""
        pairs = [(g, v) for g, v in zip(own, part.variables, strict=True) if g is not None]
        grads, variables = [g for g, _ in pairs], [v for _, v in pairs]
        samples = {}
        if self.counts_lost:
            samples = {id(v): Sample(g, part.optimizer.stored_values(v)) for g, v in pairs}
        if self.strategy is None:
            part.optimizer.update(grads, variables)
        else:
            part.optimizer.update_replicas(self.strategy, grads, variables)
        if not samples:
            return _no_counts(part)
        zero = tf.zeros((2,))
        each = [samples[id(v)].counts() if id(v) in samples else zero for v in part.variables]
        return tf.stack(each)

    def _count(self, part: OptimizerBinding) -> Any:
        if self.rule.count_skipped_steps:
            part.optimizer.count_skipped()
        return _no_counts(part)

    def _follow(self) -> Any:
        for function in self._after_step:
            function()
        return tf.constant(True)


class AssignedError(Exception):
    """A loss function assigns what is not guarded yet: its step is to be traced anew."""

    def __init__(self, variables: list[Handle]) -> None:
        """Keep the variables."""
        super().__init__()
        self.variables = variables


class StepTransaction(KerasTransaction, Transaction):
    """A whole step: the forward and backward passes too, in micro-batches."""

    def __init__(
        self,
        parts: Mapping[str, OptimizerBinding],
        loss_fn: Callable[..., Any] | Mapping[str, Callable[..., Any]],
        *,
        drops: bool,
        detector: OverflowDetector,
        after_step: tuple[Callable[[], Any], ...],
        strategy: tf.distribute.Strategy | None,
        counts_lost: bool = False,
    ) -> None:
        """Bind the phases to optimizers by name.

        Args:
            parts: those that take part.
            loss_fn: one loss for all, or one for each by name.
            drops: leave bad micro-batches out.
            detector: how an overflow is noticed.
            after_step: called after a step of all optimizers.
            strategy: the strategy, if it has several replicas.
            counts_lost: count the updates that rounding lost.
        """
        first, *others = parts.values()
        super().__init__(
            *first,
            *others,
            detector=detector,
            after_step=after_step,
            strategy=strategy,
            counts_lost=counts_lost,
        )
        self.drops = drops
        self._sums: list[Any] = []
        if callable(loss_fn):
            self._losses = [(_with_autograph(loss_fn), self.variables)]
        else:
            self._losses = [
                (_with_autograph(loss_fn[name]), part.variables) for name, part in parts.items()
            ]

    def begin(self) -> tuple[Any, Any]:
        """Clear the detector and read the buffers; a read shares their memory."""
        if self.guard is not None:
            return self.scale_state(), self.guard.begin()
        self.detector.begin()
        return self.scale_state(), None

    def save_buffers(self) -> Any:
        """Read the buffers."""
        return None if self.guard is None else self.guard.look()

    def missed(self, variables: list[Handle]) -> None:
        """Let them be guarded: nothing has run yet."""
        if variables and not tf.executing_eagerly():
            raise AssignedError(variables)

    def check_part(self, grads: list[Gradient], before: Snapshot | None) -> Any:
        """Look at every element."""
        clean = gradients.all_finite(grads)
        self.restore_unless(clean, before)
        return clean

    def differentiate(
        self, scale: tf.Tensor | float, index: int, count: int, *batch: Any
    ) -> tuple[Any, Any]:
        """Return loss and gradients of one replica, or their sums over all.

        A part waits for the sums over those before: so one part is in memory at a time, and
        TensorFlow does not make one AddN, with another order, of the chain of sums.
        """
        if count > 1:
            after = [] if index == 0 else self._sums
            batch = tuple(replicas.cut(item, index, count, after) for item in batch)
        if self.strategy is None:
            return self._differentiate(scale, *batch)
        losses, grads = replicas.each_replica(self.strategy, self._differentiate, scale, batch)
        loss = self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        return loss, self._remember(replicas.summed(self.strategy, grads, self.variables))

    def _differentiate(self, scale: tf.Tensor | float, *batch: Any) -> tuple[Any, Any]:
        """Record each forward pass, then differentiate its scaled float32 loss."""
        total, grads = None, list[Any]()
        for function, variables in self._losses:
            with tf.GradientTape() as tape:
                loss = _scalar(function(*batch))
                scaled = loss if self.rule.kind == "none" else loss * scale
            found = tape.gradient(scaled, [variable.value for variable in variables])
            if variables and all(grad is None for grad in found):
                raise BackendError(_unreached(len(variables)))
            grads += found
            total = loss if total is None else total + loss
        return total, self._remember(grads)

    def fold(
        self,
        clean: tf.Tensor | None,
        sums: Any,
        loss: tf.Tensor,
        grads: list[Gradient],
    ) -> tuple[Any, Any, Any]:
        """Choose between the sums with and without this micro-batch; the count is float32."""
        if clean is None:
            total, summed, count = sums
            return total + loss, self._added(summed, grads), count
        if sums is None:
            start = self._remember([gradients.chosen(clean, grad) for grad in grads])
            return loss, start, tf.cast(clean, tf.float32)
        total, summed, count = sums
        # Zeros change no bit of a sum: see differentiate, which keeps the order of the sums.
        more = self._added(summed, [gradients.chosen(clean, grad) for grad in grads])
        taken = tf.where(count > 0, total, tf.zeros_like(total)) + loss
        return tf.where(clean, taken, total), more, tf.where(clean, count + 1, count)

    def _added(self, grads: list[Gradient], others: list[Gradient]) -> Any:
        """Add in float32."""
        return self._remember([gradients.added(g, o) for g, o in zip(grads, others, strict=True)])

    def _remember(self, grads: list[Any]) -> list[Any]:
        self._sums = [gradients.values(grad) for grad in grads if grad is not None]
        return grads


def _unreached(count: int) -> str:
    return (
        f"`loss_fn` must depend on the trainable weights of the prepared model, none of the "
        f"{count} has a gradient: call the very model that mpcore.prepare was given, by "
        "TensorFlow's operations alone (numpy ends a gradient)"
    )


def _nothing() -> Any:
    return tf.constant(True)


def _restored(before: Snapshot) -> Any:
    before.restore()
    return tf.constant(False)


def _told(variables: list[Handle]) -> str:
    shapes = ", ".join(f"{one.dtype.name}{tuple(one.shape)}" for one in variables)
    return (
        f"the forward pass assigns variables that are no part of the model ({shapes}): they are "
        "not put back when this step is skipped; pass them to "
        "mpcore.prepare(restore_on_skip=[...]), or use amp.step"
    )


def _no_counts(part: OptimizerBinding) -> Any:
    return tf.zeros((len(part.variables), 2))


def _times(grad: Gradient, factor: tf.Tensor) -> Any:
    return gradients.mapped(lambda g: g * factor, grad)


def _scalar(loss: tf.Tensor) -> Any:
    loss = tf.convert_to_tensor(loss)
    if loss.shape.rank not in (0, None) and loss.shape.num_elements() != 1:
        msg = f"`loss_fn` must return a scalar, got shape {tuple(loss.shape)}: average it"
        raise BackendError(msg)
    return tf.reshape(tf.cast(loss, tf.float32), ())


def _with_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what ``tf.function`` would make of a Python function with branches on tensors."""
    autograph = tf.__internal__.autograph
    converted: Callable[..., Any] = autograph.tf_convert(function, autograph.control_status_ctx())
    return converted
