"""The optimizer that ``model.compile`` takes: each of its steps is a transaction."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from mpcore.errors import BackendError, MpcoreWarning
from mpcore.overflow import OverflowDetector
from mpcore.scaling import LossScale, ScaleState, initial_state
from mpcore.transaction import StepCall
from mpcore_tensorflow import replicas
from mpcore_tensorflow.gradients import float32
from mpcore_tensorflow.step import KerasTransaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_tensorflow.buffers import BufferGuard

__all__ = ["RELEASED", "TransactionalOptimizer"]

RELEASED = (
    "`amp` must not be used after amp.release(): train on with the optimizer that mpcore.prepare "
    "was given, or prepare the model again"
)

_UNPREPARED = (
    "the model of this optimizer is not prepared (it was loaded?), so its buffers, such as "
    "BatchNorm's statistics, are not restored when a step is skipped: call "
    "mpcore.prepare(model, model.optimizer, policy)"
)
_UNSEEN = (
    "apply() found no training-mode call of the model in its own trace, so the model's buffers "
    "are not restored when this step is skipped: call the model and apply() in one tf.function, "
    "or use amp.step"
)


@keras.saving.register_keras_serializable(package="mpcore")
class TransactionalOptimizer(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
    """An optimizer around the user's own that steps wholly or not at all.

    ``apply`` takes the gradients of the loss that ``scale_loss`` scaled, unscales them in
    float32, and either lets the inner optimizer update, or puts the model's buffers back;
    then the scale moves. Clipping, weight decay, accumulation and averaging of the inner
    optimizer act on true gradients, and its ``iterations`` count real steps (skipped ones too
    where the rule says ``count_skipped_steps``).

    Under a ``tf.distribute.MirroredStrategy`` the gradients of all replicas are summed in
    float32 before they are judged, so one verdict holds for all.

    It is a LossScaleOptimizer so that ``compile`` does not put another one around it. Of that
    class it uses ``learning_rate``, ``iterations`` and ``variables``.

    Source: keras/src/optimizers/loss_scale_optimizer.py of Keras 3.15.1.

    Attributes:
        inner_optimizer: the user's optimizer.
        rule: constants of the loss scale.
        guard: the model's buffers; None until ``mpcore.prepare``, as after loading a model.
        masters: float32 copies by ``id`` of the 16-bit variable they belong to.
    """

    dynamic_scale: Any
    counts: Any

    def __init__(
        self,
        inner_optimizer: Any,
        loss_scale: LossScale | str = "dynamic",
        master: str = "none",
        name: str | None = None,
    ) -> None:
        """Wrap ``inner_optimizer``.

        Args:
            inner_optimizer: a Keras optimizer.
            loss_scale: the rule, or its text.
            master: ``"copy"`` updates float32 copies of 16-bit variables, ``"none"`` does not.
            name: name of the optimizer.
        """
        rule = LossScale.parse(loss_scale) if isinstance(loss_scale, str) else loss_scale
        super().__init__(inner_optimizer, initial_scale=rule.init_scale, name=name)
        self.rule = rule
        self.master = master
        self.guard: BufferGuard | None = None
        self._held = _Held()

    @property
    def masters(self) -> dict[int, Any]:
        """Float32 copies by ``id`` of the 16-bit variable they belong to."""
        return self._held.masters

    def adopt(self, masters: dict[int, Any], shared: TransactionalOptimizer | None = None) -> None:
        """Say what ``build`` is to use: masters made before the model was cast, a shared scale.

        Args:
            masters: float32 variables by ``id`` of the 16-bit ones.
            shared: a built optimizer whose loss scale this one shares; None for its own.
        """
        self._held.given = dict(masters)
        self._held.shared = shared

    def release(self) -> None:
        """Give the masters up, and refuse further steps: the model is the user's again."""
        self.guard = None
        self._held = _Held()
        self._held.released = True

    def follow(self, detector: OverflowDetector, after_step: tuple[Callable[[], Any], ...]) -> None:
        """Settle the steps of ``apply`` with this detector and these callables."""
        self._held.detector, self._held.after_step = detector, after_step

    def build(self, var_list: Any) -> None:
        """Create the scale state, the masters, and the inner optimizer's slots.

        Args:
            var_list: the model's trainable variables.
        """
        variables = list(var_list)
        with tf.init_scope():
            self._build_scale()
            if self.master == "copy":
                for variable in variables:
                    self._add_master(variable)
            if not self.inner_optimizer.built:
                self.inner_optimizer.build([self.target(v) for v in variables])
            # Not the parent's: that would create its own state.
            super(keras.optimizers.LossScaleOptimizer, self).build(variables)

    def _build_scale(self) -> None:
        shared = self._held.shared
        if shared is not None:
            self.dynamic_scale, self.counts = shared.dynamic_scale, shared.counts
            return
        self.dynamic_scale = self.add_variable(
            (), keras.initializers.Constant(self.rule.init_scale), "float32", name="scale"
        )
        # One vector for all counts of ScaleState: one read and one assignment a step.
        first = initial_state(self.rule)[1:]
        self.counts = self.add_variable((len(first),), "zeros", "int32", name="counts")
        self.counts.assign(first)

    def _add_master(self, variable: Any) -> None:
        if keras.backend.standardize_dtype(variable.dtype) not in ("float16", "bfloat16"):
            return
        master = self._held.given.get(id(variable))
        if master is None:
            master = keras.Variable(
                tf.cast(variable.value, tf.float32), dtype="float32", name=variable.name
            )
            master.constraint = variable.constraint
        self._held.masters[id(variable)] = master
        self._track_variable(master)

    def target(self, variable: Any) -> Any:
        """Return what the inner optimizer updates for ``variable``: its master or itself."""
        return self._held.masters.get(id(variable), variable)

    def update(self, grads: list[Any], variables: list[Any]) -> None:
        """Let the inner optimizer update by true gradients, then cast the masters down."""
        self.inner_optimizer.apply(grads, [self.target(variable) for variable in variables])
        self._cast_down(variables)

    def update_replicas(self, strategy: Any, grads: list[Any], variables: list[Any]) -> None:
        """Do so in every replica of ``strategy``, by gradients summed over them."""
        targets = [self.target(variable) for variable in variables]
        replicas.update(strategy, self.inner_optimizer, grads, targets)
        self._cast_down(variables)

    def count_skipped(self) -> None:
        """Let a skipped step count for the inner optimizer's learning-rate schedule."""
        self.inner_optimizer._iterations.assign_add(1)

    def finalize_variable_values(self, var_list: Any) -> None:
        """Let the inner optimizer write its averages, at the end of ``fit``."""
        variables = list(var_list)
        self.inner_optimizer.finalize_variable_values([self.target(v) for v in variables])
        self._cast_down(variables)

    def _cast_down(self, variables: list[Any]) -> None:
        for variable in variables:
            master = self._held.masters.get(id(variable))
            if master is not None:
                variable.value.assign(tf.cast(master.value, variable.value.dtype))

    @property
    def state(self) -> ScaleState:
        """State of the loss scale, as numbers on the host."""
        if not self.built:
            return initial_state(self.rule)
        counts = self.counts.numpy().tolist()
        return ScaleState(float(self.dynamic_scale.numpy()), *counts)

    @state.setter
    def state(self, state: ScaleState) -> None:
        scale, *counts = ScaleState(*state)
        held = [int(count) for count in counts]
        self.dynamic_scale.assign(float(scale))
        self.counts.assign(held)

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss in float32, times the scale; the gradients of that go to ``apply``."""
        loss = tf.cast(loss, tf.float32)
        if self.rule.kind == "none":
            return loss
        if self.rule.kind == "static" or not self.built:
            return loss * self.rule.init_scale
        return loss * self.dynamic_scale.value

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Settle one step.

        Args:
            grads: gradients of the scaled loss: tensors, IndexedSlices, or None.
            trainable_variables: the model's variables in the same order; None for those that
                the optimizer was built with.
        """
        if self._held.released:
            raise BackendError(RELEASED)
        if not self.built:
            self.build(trainable_variables)
        variables = list(trainable_variables or self._trainable_variables)
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            self._settle(list(grads), variables, None)
            return
        context = tf.distribute.get_replica_context()
        if context is None:
            msg = "`apply` must be called in a replica: inside strategy.run, as model.fit does"
            raise BackendError(msg)

        def settle(strategy: Any, grads: list[Any]) -> None:
            self._settle(replicas.summed(strategy, grads, variables), variables, strategy)

        context.merge_call(replicas.unconverted(settle), args=([float32(grad) for grad in grads],))

    def _settle(self, grads: list[Any], variables: list[Any], strategy: Any) -> None:
        transaction = KerasTransaction(
            self,
            variables,
            detector=self._held.detector,
            after_step=self._held.after_step,
            strategy=strategy,
        )
        saved = None if self.guard is None else self.guard.take()
        if self.guard is None:
            warnings.warn(_UNPREPARED, MpcoreWarning, stacklevel=3)
        elif saved is None and self.guard.variables:
            warnings.warn(_UNSEEN, MpcoreWarning, stacklevel=3)
        # Inside a user's tf.function autograph would rewrite these plain calls.
        settle = replicas.unconverted(transaction.settle)
        settle(StepCall(), transaction.scale_state(), saved, grads)

    def get_config(self) -> dict[str, Any]:
        """Return plain data; ``from_config`` reads it back."""
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {
            "name": self.name,
            "inner_optimizer": inner,
            "loss_scale": str(self.rule),
            "master": self.master,
        }


class _Held:
    """What is out of sight of Keras, which would track dictionaries, tuples and optimizers."""

    def __init__(self) -> None:
        self.masters: dict[int, Any] = {}
        self.given: dict[int, Any] = {}
        self.shared: TransactionalOptimizer | None = None
        self.detector = OverflowDetector()
        self.released = False
        self.after_step: tuple[Callable[[], Any], ...] = ()
