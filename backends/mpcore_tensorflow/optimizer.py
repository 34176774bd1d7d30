"""The optimizer that ``model.compile`` takes: each of its steps is a transaction."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from mpcore.errors import BackendError, MpcoreWarning
from mpcore.numerics.dtypes import is_low
from mpcore.numerics.master_weights import MasterWeights
from mpcore.scaling.transition import LossScale, LossScaleState, initial_state
from mpcore.step.transaction import StepCall
from mpcore_tensorflow import replicas
from mpcore_tensorflow.gradients import float32
from mpcore_tensorflow.guarding import check
from mpcore_tensorflow.master_weights import CopiedMaster, MasterState, make_master_state
from mpcore_tensorflow.optimizer_state import chunks, store_moments
from mpcore_tensorflow.preparation import Preparation, Untracked
from mpcore_tensorflow.stagnation import LostSums
from mpcore_tensorflow.step import KerasTransaction
from mpcore_tensorflow.stored_low import check_moves
from mpcore_tensorflow.transient import close_all, opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence

    import numpy.typing as npt

    from mpcore.amp.guard import Guard
    from mpcore.policy.policy import Policy
    from mpcore_tensorflow.buffers import BufferGuard
    from mpcore_tensorflow.following import Record
    from mpcore_tensorflow.gradients import Gradient
    from mpcore_tensorflow.transient import Stored

__all__ = ["RELEASED", "TransactionalOptimizer"]

_FROZEN = "frozen_"  # how the names of frozen weights' master values begin, where they are saved

_NEEDS = (
    "`import mpcore_tensorflow` before load_model, then mpcore.prepare(model, model.optimizer, "
    "policy) to train on; or load_model(..., compile=False), for the layers and weights alone"
)

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
    optimizer act on true gradients, and its ``iterations`` count the steps that were taken
    (skipped ones too where the rule says ``count_skipped_steps``).

    Under a ``tf.distribute.MirroredStrategy`` the gradients of all replicas are summed in
    float32 before they are judged, so one verdict holds for all.

    It is a LossScaleOptimizer so that ``compile`` does not put another one around it. Of that
    class it uses ``learning_rate``, ``iterations`` and ``variables``.

    Source: keras/src/optimizers/loss_scale_optimizer.py of Keras 3.15.1.

    Attributes:
        inner_optimizer: the user's optimizer.
        rule: constants of the loss scale.
        master: the scheme of master weights.
        optimizer_state: dtype that the inner optimizer's moments are stored in between steps.
    """

    dynamic_scale: Any
    counts: Any

    def __init__(
        self,
        inner_optimizer: keras.Optimizer,
        loss_scale: LossScale | str = "dynamic",
        master: str = "none",
        name: str | None = None,
        optimizer_state: str = "float32",
    ) -> None:
        """Wrap ``inner_optimizer``.

        Args:
            inner_optimizer: a Keras optimizer.
            loss_scale: the rule, or its text.
            master: where the master values of 16-bit variables live; see ``mp.MasterWeights``.
            name: name of the optimizer.
            optimizer_state: ``"float32"`` or ``"bfloat16"``.
        """
        rule = LossScale.parse(loss_scale) if isinstance(loss_scale, str) else loss_scale
        super().__init__(inner_optimizer, initial_scale=rule.init_scale, name=name)
        self.rule = rule
        self.master = master
        self.optimizer_state = optimizer_state
        self._untracked = Untracked()

    @classmethod
    def prepared(
        cls,
        inner_optimizer: keras.optimizers.Optimizer,
        policy: Policy,
        variables: Iterable[keras.Variable],
        preparation: Preparation,
    ) -> TransactionalOptimizer:
        """Return a built one around ``inner_optimizer``, ready for steps.

        Args:
            inner_optimizer: the user's.
            policy: gives the loss scale, the master weights and the dtype of the moments.
            variables: what it moves.
            preparation: what holds for this optimizer.
        """
        made = cls(
            inner_optimizer, policy.scaling, policy.master, optimizer_state=policy.optimizer_state
        )
        # Building creates the scale, the master weights and the slots that it decides on; what
        # counts lost updates needs the variables of the built one.
        made._untracked.preparation = preparation
        made.build(variables)
        if preparation.counts_lost:
            made._untracked.lost = LostSums(made._trainable_variables)
        return made

    @property
    def guard(self) -> BufferGuard | None:
        """The model's buffers; None until ``mpcore.prepare``, as after loading a model."""
        return self._untracked.preparation.guard

    @property
    def record(self) -> Record | None:
        """Where ``apply`` writes what it did; None for nowhere."""
        return self._untracked.record

    @record.setter
    def record(self, record: Record) -> None:
        self._untracked.record = record

    @property
    def master_states(self) -> dict[int, MasterState]:
        """Master-weight states by ``id`` of the 16-bit variable; of frozen ones too."""
        return {**self._untracked.masters, **self._untracked.preparation.frozen}

    @property
    def masters(self) -> dict[int, keras.Variable]:
        """Float32 copies by ``id`` of the trained 16-bit variable; empty but for ``copy``."""
        found = self._untracked.masters.items()
        return {key: one.master for key, one in found if isinstance(one, CopiedMaster)}

    def bind(self, gate: Guard) -> None:
        """Let ``gate`` be open while the inner optimizer moves the model that is prepared."""
        self._untracked.gate = gate

    def abandon(self) -> None:
        """Put back what a step that ended by an exception has left halfway."""
        close_all([*self._untracked.opens, *self._untracked.moments])
        if self.guard is not None:
            self.guard.abandon()

    def release(self) -> None:
        """Give the masters up, and refuse further steps: the model is the user's again."""
        self._untracked = Untracked(released=True)

    def take_lost(self, steps: int) -> list[tuple[Any, Any]]:
        """Return (variable, counts) summed over the steps of ``apply``, and start anew.

        Empty where they are not counted, and before there were ``steps`` optimizer steps.
        """
        return [] if self._untracked.lost is None else self._untracked.lost.take(steps)

    def build(self, var_list: Any) -> None:
        """Create the scale state, the masters, and the inner optimizer's slots.

        Args:
            var_list: the model's trainable variables.
        """
        if self.built:  # a second optimizer around this one builds it again
            return
        variables = list(var_list)
        with tf.init_scope():
            self._build_scale()
            self._build_masters(variables)
            if not self.inner_optimizer.built:
                with opened(self._untracked.opens), self._slots_of_opened():
                    self.inner_optimizer.build([self.target(v) for v in variables])
            self._untracked.moments = store_moments(self.inner_optimizer, self.optimizer_state)
            # Not the parent's: that would create its own state.
            super(keras.optimizers.LossScaleOptimizer, self).build(variables)

    def _slots_of_opened(self) -> contextlib.AbstractContextManager[None]:
        """Let slots be made beside values that are no variables of a strategy."""
        strategy = self.inner_optimizer._distribution_strategy
        if self._untracked.opens and replicas.is_replicated(strategy):
            return replicas.once(self.inner_optimizer)
        return contextlib.nullcontext()

    def _build_scale(self) -> None:
        shared = self._untracked.preparation.shared
        if shared is not None:
            self.dynamic_scale, self.counts = shared.dynamic_scale, shared.counts
            self._untracked.steps = shared._untracked.steps
            return
        self.dynamic_scale = self.add_variable(
            (), keras.initializers.Constant(self.rule.init_scale), "float32", name="scale"
        )
        # One vector for all counts of LossScaleState: one read and one assignment a step.
        first = initial_state(self.rule)[1:]
        self.counts = self.add_variable((len(first),), "zeros", "int32", name="counts")
        self.counts.assign(first)
        if MasterWeights.parse(self.master).name == "stochastic":
            self._untracked.steps = self.add_variable((), "zeros", "uint32", name="optimizer_steps")

    def _build_masters(self, variables: list[Any]) -> None:
        scheme = MasterWeights.parse(self.master)
        if scheme.name == "none":
            return
        for ordinal, variable in enumerate(variables):
            if not is_low(str(keras.backend.standardize_dtype(variable.dtype))):
                continue
            one = self._untracked.preparation.masters.get(id(variable))
            if one is None:  # a model that is being loaded: the values follow
                one = make_master_state(scheme, variable)
                one.put(tf.cast(variable.value, tf.float32))
            one.take_place(self._untracked.steps, ordinal)
            self._untracked.masters[id(variable)] = one
            if not isinstance(one, CopiedMaster):
                self._untracked.opens.append(one)
            for stored in one.beside:
                self._track_variable(stored)

    def target(self, variable: keras.Variable) -> Any:
        """Return what the inner optimizer updates for ``variable``: its copy or itself."""
        one = self._untracked.masters.get(id(variable))
        return one.master if isinstance(one, CopiedMaster) else variable

    def stored_values(self, variable: keras.Variable) -> list[Any]:
        """Return what does not change when an update of ``variable`` is lost to rounding."""
        one = self._untracked.masters.get(id(variable))
        return [variable.value] if one is None else one.stored_values()

    def update(self, grads: list[Any], variables: list[Any]) -> None:
        """Let the inner optimizer update float32 values by true gradients, then store them."""
        untracked = self._untracked
        pairs = list(zip(grads, (self.target(v) for v in variables), strict=True))
        groups = chunks(self.inner_optimizer, variables) if untracked.opens else [[]]
        if len(groups) == 1:
            self._update_group(pairs)
        else:
            self._update_groups([[pairs[place] for place in group] for group in groups])
        self._finish(variables)

    def _update_group(self, pairs: list[tuple[Any, Any]]) -> None:
        untracked = self._untracked
        with untracked.gate.opened(), opened([*untracked.opens, *untracked.moments]):
            self.inner_optimizer.apply([g for g, _ in pairs], [v for _, v in pairs])

    def _update_groups(self, groups: list[list[tuple[Any, Any]]]) -> None:
        """Open one group after the other, in a graph too; all of them are one iteration."""
        iterations = self.inner_optimizer._iterations.value
        count, after = tf.convert_to_tensor(iterations), list[Any]()
        for pairs in groups:
            iterations.assign(count)
            with tf.control_dependencies(after):
                self._update_group(pairs)
            after = [tf.convert_to_tensor(variable.value) for _, variable in pairs]

    def update_replicas(
        self, strategy: tf.distribute.Strategy, grads: list[Any], variables: list[Any]
    ) -> None:
        """Do so in every replica of ``strategy``, by gradients summed over them."""
        if self._untracked.opens or self._untracked.moments:
            with replicas.once(self.inner_optimizer):
                self.update(grads, variables)
            return
        targets = [self.target(variable) for variable in variables]
        with self._untracked.gate.opened():
            replicas.update(strategy, self.inner_optimizer, grads, targets)
        self._finish(variables)

    def _finish(self, variables: list[Any]) -> None:
        # averages are written to all of them
        for variable in self._trainable_variables if self.inner_optimizer.use_ema else variables:
            one = self._untracked.masters.get(id(variable))
            if isinstance(one, CopiedMaster):
                one.lower()

    def count_step(self, stepped: tf.Tensor) -> None:
        """Count an optimizer step, by which stochastic rounding draws its noise, if it was one."""
        if self._untracked.steps is not None:
            self._untracked.steps.value.assign_add(tf.cast(stepped, tf.uint32))

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps so far, where they are counted; of all optimizers that share a scale."""
        return 0 if self._untracked.steps is None else int(self._untracked.steps.numpy())

    @optimizer_steps.setter
    def optimizer_steps(self, steps: int) -> None:
        if self._untracked.steps is not None:
            self._untracked.steps.value.assign(tf.constant(steps % 2**32, tf.uint32))

    def count_skipped(self) -> None:
        """Let a skipped step count for the inner optimizer's learning-rate schedule."""
        self.inner_optimizer._iterations.assign_add(1)

    def finalize_variable_values(self, var_list: Iterable[keras.Variable]) -> None:
        """Let the inner optimizer write its averages, at the end of ``fit``."""
        variables = list(var_list)
        stored: list[Stored] = [*self._untracked.opens, *self._untracked.moments]
        try:
            with opened(stored):
                self.inner_optimizer.finalize_variable_values([self.target(v) for v in variables])
        except BaseException:  # it may have met the end of that block: no step gives this up
            close_all(stored)
            raise
        for variable in variables:
            one = self._untracked.masters.get(id(variable))
            if isinstance(one, CopiedMaster):
                one.lower()

    @property
    def state(self) -> LossScaleState:
        """State of the loss scale, as numbers on the host."""
        if not self.built:
            return initial_state(self.rule)
        counts = self.counts.numpy().tolist()
        return LossScaleState(float(self.dynamic_scale.numpy()), *counts)

    @state.setter
    def state(self, state: LossScaleState) -> None:
        scale, *counts = LossScaleState(*state)
        self.dynamic_scale.assign(float(scale))
        self.counts.assign([int(count) for count in counts])

    def scale_loss(self, loss: tf.Tensor) -> Any:
        """Return the loss in float32, times the scale; the gradients of that go to ``apply``."""
        if self.guard is not None:
            self.guard.scaled()
        loss = tf.cast(loss, tf.float32)
        if self.record is not None:
            self.record.note(loss)
        if self.rule.kind == "none":
            return loss
        if self.rule.kind == "static" or not self.built:
            return loss * self.rule.init_scale
        return loss * self.dynamic_scale.value

    def apply(
        self, grads: Sequence[Gradient], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> None:
        """Settle one step.

        Args:
            grads: gradients of the scaled loss: tensors, IndexedSlices, or None.
            trainable_variables: the model's variables in the same order; None for those that
                the optimizer was built with.
        """
        if self._untracked.released:
            raise BackendError(RELEASED)
        if not self.built:
            self.build(trainable_variables)
        variables = list(trainable_variables or self._trainable_variables)
        check_moves(None, variables)
        self._check_reaches(grads)
        if not replicas.is_replicated(tf.distribute.get_strategy()):
            self._settle(list(grads), variables, None)
            return
        context = tf.distribute.get_replica_context()
        if context is None:
            msg = "`apply` must be called in a replica: inside strategy.run, as model.fit does"
            raise BackendError(msg)

        def settle(strategy: tf.distribute.Strategy, grads: list[Any]) -> None:
            self._settle(replicas.summed(strategy, grads, variables), variables, strategy)

        context.merge_call(replicas.unconverted(settle), args=([float32(grad) for grad in grads],))

    def _settle(
        self, grads: list[Any], variables: list[Any], strategy: tf.distribute.Strategy | None
    ) -> None:
        transaction = KerasTransaction(
            self,
            variables,
            detector=self._untracked.preparation.detector,
            after_step=self._untracked.preparation.after_step,
            strategy=strategy,
            counts_lost=self._untracked.lost is not None,
        )
        saved = None if self.guard is None else self.guard.take()
        if self.guard is None:
            warnings.warn(_UNPREPARED, MpcoreWarning, stacklevel=3)
        elif saved is None and self.guard.variables:
            warnings.warn(_UNSEEN, MpcoreWarning, stacklevel=3)
        # Inside a user's tf.function autograph would rewrite these plain calls.
        settle = replicas.unconverted(transaction.settle)
        state = transaction.scale_state()
        stepped, norms, next_scale, _ = settle(StepCall(), state, saved, grads)
        if self.record is not None:
            self.record.write(variables, stepped[0], norms, (state[0], next_scale))
        if self._untracked.lost is not None:
            self._untracked.lost.add(stepped[0], variables, transaction.lost)

    def _check_reaches(self, grads: Sequence[Gradient]) -> None:
        if all(grad is None for grad in grads):
            msg = (
                "`grads` must hold a gradient, all are None: the loss does not depend on the "
                "trainable weights of this model"
            )
            raise BackendError(msg)
        guard = self.guard
        if guard is not None and self.rule.kind != "none" and not guard.is_scaled():
            check(
                self._untracked.gate,
                "`apply` of gradients of a loss that was not scaled",
                "take those of amp.optimizer.scale_loss(loss), or call amp.step(loss_fn, ...)",
            )

    def get_config(self) -> dict[str, Any]:
        """Return plain data; ``from_config`` reads it back."""
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {
            "name": self.name,
            "inner_optimizer": inner,
            "loss_scale": str(self.rule),
            "master": self.master,
            "optimizer_state": self.optimizer_state,
            # Keras shows it where it cannot find this class.
            "needs": _NEEDS,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Return the optimizer that ``get_config`` described."""
        told = {key: value for key, value in config.items() if key != "needs"}
        return super().from_config(told, custom_objects)

    def save_own_variables(self, store: MutableMapping[str, npt.NDArray[Any]]) -> None:
        """Write all state; master values of frozen weights go under names of their own."""
        super().save_own_variables(store)
        for place, one in enumerate(self._untracked.preparation.frozen.values()):
            for number, stored in enumerate(one.beside):
                store[f"{_FROZEN}{place}_{number}"] = stored.numpy()

    def load_own_variables(self, store: Mapping[str, npt.NDArray[Any]]) -> None:
        """Read what ``save_own_variables`` wrote; frozen weights take theirs in ``prepare``."""
        frozen = {key: store[key] for key in store.keys() if key.startswith(_FROZEN)}  # noqa: SIM118
        self._untracked.saved = {key: np.asarray(array) for key, array in frozen.items()}
        own = {key: store[key] for key in store.keys() if key not in frozen}  # noqa: SIM118
        super().load_own_variables(own)
        for place, one in enumerate(self._untracked.preparation.frozen.values()):
            saved = self.loaded_frozen(place, one)
            for stored, array in zip(one.beside, saved or (), strict=False):
                stored.assign(array)

    def loaded_frozen(self, place: int, master: MasterState) -> list[Any] | None:
        """Return what was loaded for the frozen weight at ``place``, if it fits."""
        names = [f"{_FROZEN}{place}_{number}" for number in range(len(master.beside))]
        found = [self._untracked.saved.get(name) for name in names]
        fits = [
            array is not None and array.shape == tuple(stored.shape)
            for array, stored in zip(found, master.beside, strict=True)
        ]
        return found if all(fits) else None
