"""The transaction of one step in TensorFlow, and the object that runs it."""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from mpcore.amp import Amp
from mpcore.errors import BackendError, MpcoreWarning
from mpcore.transaction import StepResult, Transaction
from mpcore_tensorflow.layers import variable_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.plan import Plan
    from mpcore.scaling import ScaleState
    from mpcore_tensorflow.optimizer import TransactionalOptimizer

__all__ = ["KerasAmp", "KerasTransaction"]

# where loss, finite, norms, scale and next scale are in the vector of a step
_PARTS = (0, 1, slice(4, None), 2, 3)
_KEPT_STEPS = 16  # compiled steps an amp keeps; a new function object each step would fill memory


class KerasTransaction(Transaction):
    """The primitives over a list of gradients, each a tensor, IndexedSlices or None.

    They run eagerly and in ``tf.function`` alike.
    """

    def __init__(
        self,
        optimizer: TransactionalOptimizer,
        variables: list[Any],
        loss_fn: Callable[..., Any] | None = None,
    ) -> None:
        """Bind the acts to the trainable ``variables`` of one step.

        Args:
            optimizer: holds the rule, the state, the masters and the buffer guard.
            variables: the model's Keras variables, in the order of the gradients.
            loss_fn: the loss; not needed where the gradients come from elsewhere.
        """
        self.rule = optimizer.rule
        self.optimizer = optimizer
        self.variables = variables
        self.loss_fn = None if loss_fn is None else _with_autograph(loss_fn)

    def scale_state(self) -> Any:
        """Read the scale, a constant unless it is dynamic, and the counts."""
        if self.rule.kind == "dynamic":
            scale = tf.convert_to_tensor(self.optimizer.dynamic_scale.value)
        else:
            scale = tf.constant(self.rule.init_scale, tf.float32)
        return (scale, *tf.unstack(self.optimizer.counts.value))

    def begin(self) -> Any:
        """Read the buffers; a read shares their memory."""
        guard = self.optimizer.guard
        return None if guard is None else guard.begin()

    def differentiate(self, scale: Any, *batch: Any) -> tuple[Any, Any]:
        """Record the forward pass, then differentiate the scaled float32 loss."""
        if self.loss_fn is None:
            msg = "this transaction has no loss function: it settles gradients of others"
            raise BackendError(msg)
        with tf.GradientTape() as tape:
            loss = tf.convert_to_tensor(self.loss_fn(*batch))
            if loss.shape.rank not in (0, None) and loss.shape.num_elements() != 1:
                msg = f"`loss_fn` must return a scalar, got shape {tuple(loss.shape)}: average it"
                raise BackendError(msg)
            loss = tf.reshape(tf.cast(loss, tf.float32), ())
            scaled = loss if self.rule.kind == "none" else loss * scale
        return loss, tape.gradient(scaled, [variable.value for variable in self.variables])

    def unscale(self, grads: Any, scale: Any) -> Any:
        """Cast to float32 and divide; rows of a sparse gradient that repeat are summed first."""
        divisor = None if self.rule.kind == "none" else scale
        return [None if grad is None else _unscaled(grad, divisor) for grad in grads]

    def norms(self, grads: Any) -> Any:
        """Return the L2 norms; a missing gradient counts as zero."""
        if not grads:
            return tf.zeros((0,), tf.float32)
        halves = [tf.constant(0.0) if g is None else tf.nn.l2_loss(_values(g)) for g in grads]
        return tf.sqrt(2.0 * tf.stack(halves))

    def all_finite(self, grads: Any, norms: Any) -> Any:
        """Finite norms prove it; else look at every element, as a finite one may square to inf."""
        present = [_values(grad) for grad in grads if grad is not None]

        def exact() -> Any:
            checks = [tf.reduce_all(tf.math.is_finite(grad)) for grad in present]
            return tf.reduce_all(tf.stack(checks)) if checks else tf.constant(True)

        quick = tf.math.is_finite(tf.reduce_sum(norms))
        return tf.cond(quick, lambda: tf.constant(True), exact)

    def clip(self, grads: Any, norms: Any, clip_norm: float) -> Any:
        """Scale all gradients by min(1, clip_norm / total norm)."""
        factor = clip_norm / tf.maximum(tf.norm(norms), clip_norm)
        return [None if grad is None else _map(lambda g: g * factor, grad) for grad in grads]

    def commit(self, finite: Any, grads: Any, saved: Any) -> Any:
        """Update weights, slots and count in one branch, restore the buffers in the other."""
        pairs = [
            (grad, variable)
            for grad, variable in zip(grads, self.variables, strict=True)
            if grad is not None
        ]

        def take() -> Any:
            self.optimizer.update([g for g, _ in pairs], [v for _, v in pairs])
            return tf.constant(True)

        def restore() -> Any:
            guard = self.optimizer.guard
            if saved is not None and guard is not None:
                guard.restore(saved)
            return tf.constant(False)

        return tf.cond(finite, take, restore)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Choose by value."""
        return tf.where(condition, x, y)

    def store(self, new: Any, done: Any) -> Any:
        """Assign the state that can have changed; TensorFlow keeps the order of assignments."""
        del done
        scale, *counts = new
        self.optimizer.counts.value.assign(tf.stack(counts))
        if self.rule.kind == "dynamic":
            self.optimizer.dynamic_scale.value.assign(scale)
        return scale


def _with_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what ``tf.function`` would make of a Python function with branches on tensors."""
    autograph = tf.__internal__.autograph
    converted: Callable[..., Any] = autograph.tf_convert(function, autograph.control_status_ctx())
    return converted


class _CompiledStep:
    """What ``tf.function`` traces; an object, as it counts traces of a function by its source."""

    def __init__(
        self, transaction: KerasTransaction, clip_norm: float | None, keep_grads: bool
    ) -> None:
        self.transaction, self.clip_norm, self.keep_grads = transaction, clip_norm, keep_grads

    def __call__(self, *batch: Any) -> tuple[tuple[Any, ...], list[Any]]:
        *raw, grads = self.transaction.transact(self.clip_norm, *batch)
        return _packed(raw), [_dense(grad) for grad in grads] if self.keep_grads else []


def _packed(raw: list[Any]) -> Any:
    """Return one vector: each output of a compiled function costs the host some microseconds."""
    loss, finite, norms, scale, next_scale = raw
    head = tf.stack([loss, tf.cast(finite, tf.float32), scale, next_scale])
    return tf.concat([head, norms], axis=0)


def _values(grad: Any) -> Any:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def _map(function: Callable[[Any], Any], grad: Any) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(function(grad.values), grad.indices, grad.dense_shape)
    return function(grad)


def _unscaled(grad: Any, divisor: Any) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        # A row that occurs twice has two parts: neither norm nor square of a part is the whole's.
        rows, positions = tf.unique(grad.indices)
        summed = tf.math.unsorted_segment_sum(
            tf.cast(grad.values, tf.float32), positions, tf.size(rows)
        )
        grad = tf.IndexedSlices(summed, rows, grad.dense_shape)
    return _map(lambda g: _divided(tf.cast(g, tf.float32), divisor), grad)


def _divided(grad: Any, divisor: Any) -> Any:
    return grad if divisor is None else grad / divisor


class KerasAmp(Amp):
    """A prepared Keras model.

    ``step`` is compiled once for each ``loss_fn``, ``clip_norm`` and ``keep_grads``. Which
    weights are trainable is read then; the losses of regularizers are in
    ``sum(model.losses)``, for ``loss_fn`` to add.

    Attributes:
        model: the model, its layers set to the plan.
        optimizer: for ``model.compile``; shares its state with ``step``, so both may be used.
    """

    def __init__(self, model: Any, optimizer: TransactionalOptimizer, plan: Plan) -> None:
        """Bind a model that the plan was applied to."""
        super().__init__(plan, simulated=False)
        self.model = model
        self.optimizer = optimizer
        self._steps: OrderedDict[Any, tuple[Any, list[str]]] = OrderedDict()

    @property
    def state(self) -> ScaleState:
        """State of the loss scale, as numbers on the host."""
        return self.optimizer.state

    @state.setter
    def state(self, state: ScaleState) -> None:
        self.optimizer.state = state

    def _step(
        self,
        loss_fn: Callable[..., Any],
        *batch: Any,
        clip_norm: float | None,
        keep_grads: bool,
    ) -> StepResult:
        found = self._steps.get((loss_fn, clip_norm, keep_grads))
        function, names = found or self._compile(loss_fn, clip_norm, keep_grads)
        packed, grads = function(*batch)
        raw = [(packed, part) for part in _PARTS]
        if not keep_grads:
            return StepResult(raw, names, _to_numpy)
        kept = {name: g for name, g in zip(names, grads, strict=True) if g is not None}
        return StepResult(raw, names, _to_numpy, kept)

    def _compile(
        self, loss_fn: Callable[..., Any], clip_norm: float | None, keep_grads: bool
    ) -> tuple[Any, list[str]]:
        variables = list(self.model.trainable_variables)
        paths = variable_names(self.model)
        transaction = KerasTransaction(self.optimizer, variables, loss_fn)

        step = _CompiledStep(transaction, clip_norm, keep_grads)
        # Only the user's function may hold branches on tensors; our errors stay as they are.
        function = tf.function(step, reduce_retracing=True, autograph=False)
        self._steps[loss_fn, clip_norm, keep_grads] = function, [paths[id(v)] for v in variables]
        if len(self._steps) > _KEPT_STEPS:
            self._steps.popitem(last=False)
            msg = (
                f"amp.step was given more than {_KEPT_STEPS} different loss functions, and each "
                "is compiled: pass the same function object each time"
            )
            warnings.warn(msg, MpcoreWarning, stacklevel=3)
        return self._steps[loss_fn, clip_norm, keep_grads]

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Do nothing: the layers themselves cast. For scripts that run in every backend."""
        yield


def _dense(grad: Any) -> Any:
    return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad


def _to_numpy(place: tuple[Any, Any]) -> Any:
    packed, part = place
    return packed.numpy()[part]
