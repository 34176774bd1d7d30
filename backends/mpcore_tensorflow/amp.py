"""The object that runs the steps of a prepared Keras model."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from mpcore._lib.callers import warn_user
from mpcore._lib.interrupts import Held
from mpcore.amp.amp import Amp
from mpcore.errors import BackendError
from mpcore.step.micro_batches import uneven
from mpcore.step.result import StepResult, StepValues
from mpcore.step.stagnation import JUDGED_STEPS, measures
from mpcore_tensorflow.ascend import unsaturated
from mpcore_tensorflow.casting import plans_in, release_plan
from mpcore_tensorflow.collapse import CollapseCallback
from mpcore_tensorflow.float32 import set_float32
from mpcore_tensorflow.following import Record, packed, places, to_numpy
from mpcore_tensorflow.gradients import dense
from mpcore_tensorflow.guarding import check_grappler, unprotect
from mpcore_tensorflow.layers import variable_names
from mpcore_tensorflow.memory import array_bytes
from mpcore_tensorflow.optimizer import RELEASED
from mpcore_tensorflow.parameter_dtypes import release_variables
from mpcore_tensorflow.replanning import put_plan, seen_in_fit
from mpcore_tensorflow.replicas import is_distributed
from mpcore_tensorflow.step import AssignedError, OptimizerBinding, StepTransaction
from mpcore_tensorflow.stored_low import check_moves
from mpcore_tensorflow.trial import under

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import keras
    import numpy.typing as npt

    from mpcore.graph.ir import GraphPlan
    from mpcore.numerics.overflow import OverflowDetector
    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore.scaling.transition import LossScaleState
    from mpcore.step.transaction import StepCall, StepOptions
    from mpcore_tensorflow.master_weights import MasterState
    from mpcore_tensorflow.optimizer import TransactionalOptimizer

__all__ = ["KerasAmp"]

_KEPT_STEPS = 16  # compiled steps an amp keeps; a new function object each step would fill memory


class KerasAmp(Amp):
    """A prepared Keras model.

    ``step`` is compiled once for each loss function (or dict of them) and each set of its other
    arguments. Which weights are trainable is read then; the losses of regularizers are in
    ``sum(model.losses)``, for ``loss_fn`` to add. ``after_step`` is compiled too: of what it does
    only TensorFlow's operations repeat.

    An exception in ``loss_fn`` itself leaves everything as it was. So does an error that
    TensorFlow raises later, while the compiled step runs (an assertion in the graph, a label out
    of range), but for the buffers: a snapshot on the host would cost a tenth of a small step.

    One optimizer trains all trainable weights. Several are each built before ``prepare``, for
    the weights they move: ``optimizer.build(model.critic.trainable_variables)``.

    Under a ``tf.distribute.MirroredStrategy`` make model and optimizers inside
    ``strategy.scope()``, then call ``prepare``, ``fit`` and ``step`` outside, as without one.
    ``step`` cuts each tensor of the batch into equal parts for the replicas; a batch of
    ``strategy.experimental_distribute_dataset`` is in parts already. As everywhere in
    ``tf.distribute``, losses and gradients of the replicas are *summed*: Keras' losses divide
    by the number of replicas themselves, your own must (``tf.nn.compute_average_loss``).
    ``sync_overflow`` has nothing to decide there: the replicas share their weights.

    Attributes:
        model: the model, its layers set to the plan.
        optimizers: TransactionalOptimizers by name, around the user's (``inner_optimizer``).
            They hold all state: masters, slots, counts, and the loss scale that they share.
    """

    def __init__(
        self,
        model: keras.Model,
        owned: Mapping[str, tuple[TransactionalOptimizer, list[Any] | None]],
        plan: Plan,
        options: StepOptions,
        *,
        detector: OverflowDetector,
        strategy: tf.distribute.Strategy | None,
    ) -> None:
        """Bind a model that the plan was applied to.

        Args:
            model: the model.
            owned: the optimizers and their weights by name; None for all that are trainable.
            plan: the plan.
            options: what holds for every step.
            detector: the one that the options name.
            strategy: of several replicas, or None.
        """
        super().__init__(plan, {name: one for name, (one, _) in owned.items()}, simulated=False)
        self.model = model
        self._owned = {name: weights for name, (_, weights) in owned.items()}
        self._first: TransactionalOptimizer = next(iter(self.optimizers.values()))
        self._options, self._detector, self._strategy = options, detector, strategy
        self._counts_lost = measures(plan.policy, options.count_lost_updates)
        self._moved: list[str] = []
        self._told = False
        self._compiled: OrderedDict[Any, tuple[Any, list[str]]] = OrderedDict()
        self._steps_then = 0
        self._released = False
        for one in self.optimizers.values():
            one.bind(self.guard)
        self._float32_before = set_float32(plan.policy.float32)
        self.restart_look()

    @property
    def optimizer(self) -> TransactionalOptimizer:
        """The only optimizer, for ``model.compile``; shares its state with ``step``.

        Raises:
            BackendError: there are several.
        """
        only: TransactionalOptimizer = self._only_optimizer()
        return only

    @property
    def graphs(self) -> tuple[GraphPlan, ...]:
        """Under by="graph", the plan of every graph so far; empty otherwise."""
        return plans_in(self.model)

    @property
    def state(self) -> LossScaleState:
        """State of the loss scale, as numbers on the host."""
        return self._first.state

    @state.setter
    def state(self, state: LossScaleState) -> None:
        self._first.state = state
        self.restart_look()

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps, where stochastic rounding counts them; see ``Amp.optimizer_steps``."""
        return self._first.optimizer_steps

    @optimizer_steps.setter
    def optimizer_steps(self, steps: int) -> None:
        self._first.optimizer_steps = steps

    def master_values(self, variable: keras.Variable) -> npt.NDArray[np.float32]:
        """Return the float32 master values of a Keras variable of the model, on the host."""
        one = self._master_states().get(id(variable))
        value = variable.value if one is None else one.open()
        return np.array(tf.cast(value, tf.float32).numpy())

    def put(self, variable: keras.Variable, value: tf.Tensor) -> None:
        """Put float32 master values into a Keras variable of the model, whatever the scheme."""
        one = self._master_states().get(id(variable))
        if one is None:
            variable.assign(value)
        else:
            one.put(tf.constant(value, tf.float32))

    def _master_states(self) -> dict[int, MasterState]:
        each = (optimizer.master_states for optimizer in self.optimizers.values())
        return {key: one for states in each for key, one in states.items()}

    def _read_weights(self) -> dict[str, npt.NDArray[np.float32]]:
        return {path: self.master_values(variable) for path, variable in self._floats()}

    def _write_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        for path, variable in self._floats():
            self.put(variable, weights[path])

    def _master_shapes(self, *, every: bool = False) -> dict[str, tuple[int, ...]]:
        states = self._master_states()
        return {
            path: tuple(variable.shape)
            for path, variable in self._floats()
            if every or (id(variable) in states and states[id(variable)].beside)
        }

    def _read_masters(self) -> dict[str, npt.NDArray[np.float32]]:
        states, shapes = self._master_states(), self._master_shapes()
        return {
            path: states[id(variable)].to_save()
            for path, variable in self._floats()
            if path in shapes
        }

    def _floats(self) -> list[tuple[str, Any]]:
        paths = variable_names(self.model)
        by_id = {id(v): v for v in self.model.variables}
        return [
            (path, by_id[key]) for key, path in paths.items() if by_id[key].value.dtype.is_floating
        ]

    def array_bytes(self) -> dict[str, int]:
        """Return the bytes of what is alive between steps; see ``Amp.array_bytes``.

        TensorFlow frees gradients when a step ends: theirs are what the backward pass of the
        latest ``amp.step`` made, a sparse one counted with all its rows.
        """
        latest = set(self._moved)
        moved = [variable for path, variable in self._floats() if path in latest]
        return array_bytes(self.model, list(self.optimizers.values()), moved)

    def gradient(self, function: Callable[..., Any], *inputs: tf.Tensor) -> Any:
        """Return the gradient of ``function(*inputs).sum()`` for ``inputs[0]``, in float32.

        For penalties on gradients: call it inside ``loss_fn``; what it returns can be
        differentiated again. The backward pass inside is scaled, so that float16 does not lose
        it, and the scale is divided out: it is the true gradient.

        Args:
            function: runs the model; returns a tensor of any shape.
            inputs: tensors; the first is the one to differentiate for.

        Returns:
            A float32 tensor of the shape of ``inputs[0]``.

        Raises:
            BackendError: the first input is no float, or what ``function`` returns does not
                depend on it.
        """
        self._check_prepared()
        first = tf.convert_to_tensor(inputs[0])
        if not first.dtype.is_floating:
            msg = f"`inputs` must begin with a floating-point tensor, got {first.dtype.name}"
            raise BackendError(msg)
        with tf.GradientTape() as tape:
            tape.watch(first)
            outputs = tf.cast(function(first, *inputs[1:]), tf.float32)
            scaled = self._first.scale_loss(tf.reduce_sum(outputs))
        grad = tape.gradient(scaled, first)
        if grad is None:
            msg = "`function` must return something that depends on its first input, it does not"
            raise BackendError(msg)
        return tf.cast(grad, tf.float32) / self._first.scale_loss(tf.constant(1.0))

    def callback(self) -> keras.callbacks.Callback:
        """Return a Keras callback that looks for a collapsed run: ``fit(callbacks=[...])``.

        It calls ``check_collapse`` every ``patience`` batches and after each epoch, and
        ``check_stall`` every 20 batches. The logs of an epoch get ``loss_scale``,
        ``skipped_steps`` and, with one optimizer, ``grad_norm``: the L2 norm of the true gradients
        of its last batch, before clipping.
        """
        if len(self.optimizers) == 1 and self.keep_record():
            self.model.train_function = None
        return CollapseCallback(self)

    def keep_record(self) -> bool:
        """Let steps of ``fit`` say what they did; return whether they have to be traced anew."""
        if self._first.record is not None:
            return False
        paths, variables = variable_names(self.model), self._first._trainable_variables
        self._first.record = Record(variables, [paths[id(v)] for v in variables])
        return True

    @property
    def fit_record(self) -> StepResult | None:
        """What the latest step of ``fit`` did; None where it keeps no record."""
        return None if self._first.record is None else self._first.record.result()

    def abandon(self) -> None:
        """Put back what a step that ended by an exception has left halfway."""
        for optimizer in self.optimizers.values():
            optimizer.abandon()

    @property
    def follows_fit(self) -> bool:
        """Whether somebody is told of each step of ``fit``."""
        return bool(self.observers) or self.keeper is not None

    def fit_step_done(self, data: Any = None) -> None:
        """End a step of ``fit`` as one of ``step``: those who follow are told.

        Not where Keras takes several at once, nor where there are several optimizers.
        """
        if not self.follows_fit or len(self.optimizers) > 1 or self.model.steps_per_execution != 1:
            return
        result = self.fit_record
        if result is not None:
            if self.keeper is not None:
                self._latest = seen_in_fit(self.model, data, self._steps_done + 1)
            self._done(result)

    def check_collapse(self) -> None:
        """Report, as the loss scale's ``on_collapse`` says, if all steps of late were skipped.

        ``step`` and ``callback`` call it. With one optimizer the steps are counted where they
        are taken, so that it also sees those of ``fit`` and of loops of the user's own.

        Raises:
            LossScaleError: the run has collapsed, and the rule says so.
        """
        if len(self.optimizers) == 1:
            before, self._steps_then = self._steps_then, self._steps()
            self._since_look = self._steps_then - before
        super().check_collapse()

    def check_stall(self) -> None:
        """Warn, once, if rounding lost most updates of the steps in ``fit`` and loops of your own.

        Of those that were counted (``prepare(count_lost_updates=...)``), and not before there were
        20 steps that were taken. ``callback`` calls it; ``step`` looks by itself.
        """
        if self._told or self.policy.scheme.name == "stochastic":
            return
        paths = variable_names(self.model)
        found = [pair for one in self.optimizers.values() for pair in one.take_lost(JUDGED_STEPS)]
        msg = self._stagnation.judge({paths[id(v)]: counts for v, counts in found})
        if msg:
            self._told = True
            self._warn(msg)

    def _warn(self, msg: str) -> None:
        warn_user(msg, "keras")  # whose ``fit`` calls callbacks

    def restart_look(self) -> None:
        """Let the next ``check_collapse`` see the steps from here on."""
        self._since_look, self._steps_then = 0, self._steps()
        self._skipped_then = int(self.state.skipped_steps)

    @property
    def released(self) -> bool:
        """Whether ``release`` was called."""
        return self._released

    def release(self) -> None:
        """Give the model back as it was before ``prepare``; later steps are refused.

        Calls, dtype policies and flags of the layers are the original ones again. Weights keep
        what they have learnt, in float32: 16-bit parameters, frozen ones too, become the float32
        master values that the scheme of master weights stores, or what they hold where it has none
        (``none``, ``stochastic``). Outputs are those of an unprepared
        model with the same weights, bit for bit. Parameters that came in 16 bits stay so if they
        were frozen; those that were trained are float32 (``widened`` names them), and a layer whose
        dtype policy was ``"bfloat16"`` has ``"mixed_bfloat16"`` for them. The optimizers that
        ``prepare`` was given may be used natively, with their slots; where ``model.optimizer`` was
        this one's, it is the given one again. A second call does nothing.

        Raises:
            BackendError: it was called inside a ``tf.function``; nothing has changed.
        """
        if self._released:
            return
        if tf.inside_function():
            msg = "`release` must be called outside of tf.function: graphs hold what was traced"
            raise BackendError(msg)
        self._released = True
        wrappers = list(self.optimizers.values())
        unprotect(self.model, self)
        with self.model.distribute_strategy.scope():
            release_plan(self.model)
            release_variables(self.model, wrappers)
        if any(getattr(self.model, "optimizer", None) is wrapper for wrapper in wrappers):
            self.model.optimizer = self.model.optimizer.inner_optimizer
        self._compiled.clear()
        set_float32(self._float32_before)

    def trace_anew(self) -> None:
        """Let the next step be traced again: what it trains has changed."""
        self._compiled.clear()

    def _check_prepared(self) -> None:
        if self._released:
            raise BackendError(RELEASED)

    def _steps(self) -> int:
        """Return the number of steps that the first optimizer took or skipped."""
        taken = int(self._first.inner_optimizer._iterations.numpy())
        return taken + (0 if self._rule.count_skipped_steps else int(self.state.skipped_steps))

    def _step(self, loss_fn: Any, batch: tuple[Any, ...], call: StepCall) -> StepResult:
        self._check_prepared()
        if self._strategy is not None and not _outside_replicas():
            msg = "`amp.step` must be called outside strategy.run: it runs the replicas itself"
            raise BackendError(msg)
        self._check_divides(batch, call.micro_batches)
        key = (tuple(loss_fn.items()) if isinstance(loss_fn, dict) else loss_fn, call)
        function, names = self._compiled.get(key) or self._compile(key, loss_fn, call)
        # A graph cannot be left in its middle, so nothing waits longer for this; behind it the
        # step is to end whole.
        self.held.now()
        packed, grads, lost = self._run(function, batch)
        self._moved = names
        values = [(packed, part) for part in places(len(call.optimizers))]
        returned = {name: g for name, g in zip(names, grads, strict=False) if g is not None}
        counts = (lost, slice(None)) if self._counts_lost else None
        done = StepValues(*values)._replace(lost=counts)
        return StepResult(done, names, to_numpy, returned, call.optimizers)

    def _run(self, function: Any, batch: tuple[Any, ...]) -> Any:
        try:
            return function(*batch)
        except AssignedError as found:  # while it was traced: nothing has moved
            guard = self._first.guard
            if guard is None:
                raise
            guard.add(found.variables)
        except BaseException:
            self.abandon()
            raise
        return self._run(function, batch)

    def _under(self, policy: Policy) -> Any:
        self._check_prepared()
        return under(self, policy)

    def replan(self, policy: Policy) -> str:
        """Run under ``policy`` from now on; steps are traced anew. See ``Insurable.replan``."""
        self._check_prepared()
        with Held():
            self.plan = put_plan(self, policy)
            self.trace_anew()
        return "; steps are traced anew"

    def _compile(self, key: Any, loss_fn: Any, call: StepCall) -> tuple[Any, list[str]]:
        check_grappler(self.guard)
        transaction = StepTransaction(
            {
                name: OptimizerBinding(self.optimizers[name], self._weights(name))
                for name in call.optimizers
            },
            loss_fn,
            drops=self._options.on_bad_micro_batch == "drop",
            detector=self._detector,
            after_step=self._options.after_step,
            strategy=self._strategy,
            counts_lost=self._counts_lost,
        )
        step = _CompiledStep(transaction, call)
        # Only the user's function may hold branches on tensors; our errors stay as they are.
        function = tf.function(step, reduce_retracing=True, autograph=False)
        paths = variable_names(self.model)
        self._compiled[key] = function, [paths[id(v)] for v in transaction.variables]
        if len(self._compiled) > _KEPT_STEPS:
            self._compiled.popitem(last=False)
            msg = (
                f"amp.step was given more than {_KEPT_STEPS} different loss functions, and each "
                "is compiled: pass the same function object each time"
            )
            self._warn(msg)
        return self._compiled[key]

    def _weights(self, name: str) -> list[Any]:
        owned = self._owned[name]
        trainable = list(self.model.trainable_variables)
        if not self.inference:
            check_moves(self.model, trainable)
        if owned is None:
            return trainable
        own = {id(variable) for variable in owned}
        return [variable for variable in trainable if id(variable) in own]

    def _check_divides(self, batch: tuple[Any, ...], micro_batches: int) -> None:
        """Refuse what cannot be cut evenly, before anything runs."""
        replicas = 1
        if self._strategy is not None and not is_distributed(batch):
            replicas = self._strategy.num_replicas_in_sync
        count = replicas * micro_batches
        if count == 1:
            return
        for item in tf.nest.flatten(batch):
            parts = item.values if isinstance(item, tf.distribute.DistributedValues) else [item]
            for part in parts:
                shape: Any = getattr(part, "shape", ())
                if len(shape) and shape[0] % count:
                    raise BackendError(_uneven(shape[0], micro_batches, replicas))

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Do nothing: the layers themselves cast. For scripts that run in every backend."""
        yield


class _CompiledStep:
    """What ``tf.function`` traces; an object, as it counts traces of a function by its source."""

    def __init__(self, transaction: StepTransaction, call: StepCall) -> None:
        self.transaction, self.call = transaction, call

    def __call__(self, *batch: Any) -> tuple[Any, list[Any], Any]:
        strategy = self.transaction.strategy
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            *values, grads = self.transaction.transact(self.call, *batch)
        with unsaturated():  # an emulated device does not store this record
            returned = [dense(grad) for grad in grads] if self.call.keep_grads else []
            return packed(StepValues(*values)), returned, self.transaction.lost


def _uneven(rows: int, micro_batches: int, replicas: int) -> str:
    if replicas == 1:
        return uneven(rows, micro_batches)
    return (
        f"`batch` must divide evenly into {replicas} replicas times {micro_batches} "
        f"micro-batches, got {rows} rows; choose a divisor, or leave out the last rows"
    )


def _outside_replicas() -> bool:
    return not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context()
