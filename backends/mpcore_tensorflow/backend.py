"""The backend: names, capabilities, and how a plan is attached to a Keras model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from mpcore._lib.callers import warn_user
from mpcore.backend.backend import Capabilities, Support, refuse_shared
from mpcore.backend.parts import InModule
from mpcore.errors import BackendError, OptimizerError
from mpcore.numerics.master_weights import SCHEMES
from mpcore.numerics.overflow import OverflowDetector, find_detector
from mpcore.step.stagnation import measures
from mpcore_tensorflow.amp import KerasAmp
from mpcore_tensorflow.ascend import EmulatedAscend
from mpcore_tensorflow.buffers import BufferGuard, guarded_variables
from mpcore_tensorflow.casting import apply_plan, is_prepared
from mpcore_tensorflow.graph_forward import proved
from mpcore_tensorflow.graph_rewritten import check_rewritten
from mpcore_tensorflow.guarding import check_unshared, protect, unprotect
from mpcore_tensorflow.layers import check_model, set_apart, usual_dtype, variable_names, walk
from mpcore_tensorflow.master_weights import master_state_of, redirect_assignments
from mpcore_tensorflow.optimizer import TransactionalOptimizer
from mpcore_tensorflow.optimizer_state import check_state
from mpcore_tensorflow.parameter_dtypes import cast_variables
from mpcore_tensorflow.preparation import Preparation
from mpcore_tensorflow.replicas import check_strategy
from mpcore_tensorflow.stored_low import CameLow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.backend.callback import MakeCallback
    from mpcore.backend.differences import Differences
    from mpcore.backend.driver import Driver
    from mpcore.backend.foreteller import Foreteller
    from mpcore.backend.listener import Listener
    from mpcore.backend.modes import Modes
    from mpcore.backend.moves import Moves
    from mpcore.backend.probe import Probe
    from mpcore.backend.profiler import Profiler
    from mpcore.backend.rebuild import Rebuild
    from mpcore.graph.part import GraphPart
    from mpcore.policy.layer import Layer
    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore.step.transaction import StepOptions
    from mpcore.tools.inspection.observe import DryRun
    from mpcore.tools.inspection.recorder import Recorder

__all__ = ["TensorflowBackend"]

_NO_OP_LISTS = (
    "Keras casts per layer; grappler's auto_mixed_precision is a switch of the process that "
    "rewrites every graph in it, not eager or XLA code, with a list that takes no rules and was "
    "no faster on CPU than by='layer' with bfloat16"
)
_LOW = ("float16", "bfloat16")
_SLOW_FLOAT16 = "float16 convolutions are emulated on a CPU and slow; bfloat16 is not"


class TensorflowBackend:
    """tf.keras: Keras 3 models on TensorFlow."""

    name = "tensorflow"
    graph: InModule[GraphPart] = InModule("mpcore_tensorflow.graph")
    foreteller: InModule[Foreteller] = InModule("mpcore_tensorflow.dry_run")
    dry_run: InModule[DryRun] = InModule("mpcore_tensorflow.dry_run")
    modes: InModule[Modes[KerasAmp]] = InModule("mpcore_tensorflow.modes")
    moves: InModule[Moves] = InModule("mpcore_tensorflow.moves")
    profiler: InModule[Profiler] = InModule("mpcore_tensorflow.profile")
    probe: InModule[Probe] = InModule("mpcore_tensorflow.probe")
    differences: InModule[Differences] = InModule("mpcore_tensorflow.differences")
    listener: InModule[Listener] = InModule("mpcore_tensorflow.listener")
    rebuild: InModule[Rebuild] = InModule("mpcore_tensorflow.rebuild")
    recorder: InModule[Recorder] = InModule("mpcore_tensorflow.recorder")

    def capabilities(self, model: keras.Model | None = None, /) -> Capabilities:
        """Return what can be done on the default device; Keras does not move models."""
        del model
        on_gpu = bool(tf.config.list_physical_devices("GPU"))
        return Capabilities(
            backend=self.name,
            device="gpu:0" if on_gpu else "cpu",
            versions={"tensorflow": tf.__version__, "keras": keras.__version__},
            mode="graph",
            compute={
                "float16": Support("native", "" if on_gpu else _SLOW_FLOAT16),
                "bfloat16": Support("native"),
            },
            by={
                "op": Support("absent", _NO_OP_LISTS),
                "layer": Support("native"),
                "model": Support("native"),
                "graph": Support("native"),
            },
            op_lists=("native", "portable"),
            rules={
                "op": (),
                "layer": ("path", "layer", "op"),
                "model": ("path", "layer", "op"),
                "graph": ("path", "layer", "op"),
            },
            overflow=_overflow_kind(),
            masters=tuple(SCHEMES),
            optimizer_state=("float32", "bfloat16"),
            stored=("float32", "bfloat16", "float16"),
            replans=True,
        )

    def layers(self, model: keras.Model, /) -> list[Layer]:
        """Return every layer of a built model, itself first; InputLayer is left out.

        Raises:
            BackendError: no keras.Model, or one whose weights do not exist yet.
        """
        check_model(model)
        usual = usual_dtype(model)
        return [entry.describe(_masters(model), usual) for entry in walk(model)]

    def check_pair(self, model: keras.Model, optimizer: keras.Optimizer, /) -> None:
        """Raise OptimizerError unless ``optimizer`` can train ``model`` in transactions."""
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            msg = f"`optimizer` must be a keras.optimizers.Optimizer, got {_kind(optimizer)}"
            raise OptimizerError(msg)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        if inner is not optimizer and not isinstance(optimizer, TransactionalOptimizer):
            msg = (
                "`optimizer` must not scale the loss itself (two nested scalers), got "
                f"{_kind(optimizer)}: pass its inner_optimizer"
            )
            raise OptimizerError(msg)
        if inner.loss_scale_factor is not None:
            msg = (
                "`optimizer` must not scale the loss itself (two nested scalers), got "
                f"loss_scale_factor={inner.loss_scale_factor}: leave it out and use "
                "policy.with_loss_scale('static(...)')"
            )
            raise OptimizerError(msg)
        if optimizer.built:
            _check_known(model, optimizer)

    def check_apart(self, optimizers: Mapping[str, Any], /) -> None:
        """Raise OptimizerError if two optimizers move the same weight.

        Keras optimizers that are not built do not know their weights yet; ``attach`` asks for
        them where there are several.
        """
        refuse_shared(
            {
                name: (
                    (optimizer._var_key(v), v.path.replace("/", "."))
                    for v in optimizer._trainable_variables
                )
                for name, optimizer in optimizers.items()
                if optimizer.built
            }
        )

    def attach(
        self,
        model: keras.Model,
        optimizers: Mapping[str, Any],
        plan: Plan,
        options: StepOptions,
        /,
        *,
        simulated: bool,
    ) -> KerasAmp:
        """Apply ``plan`` to ``model`` in place and return the object that runs its steps.

        An optimizer that ``prepare`` returned earlier (in a loaded model, say) is unwrapped;
        its scale state and masters live on.

        Raises:
            BackendError: the model is spread over replicas in a way that is not known, or was
                prepared before; or the options hold what cannot be honoured.
            OptimizerError: the optimizer's slots belong to weights that would be cast, or it is
                one of several and not built.
        """
        del simulated  # both 16-bit formats are native here
        check_unshared(model)
        moves = bool(optimizers)
        if not moves:  # for inference: the state of the scale lives in one that never steps
            optimizers = {"optimizer": keras.optimizers.SGD(0.0)}
        owned = _owned(model, optimizers)
        previous = _previous(model, optimizers)
        inners = {name: getattr(o, "inner_optimizer", o) for name, o in optimizers.items()}
        strategy = check_strategy(model.distribute_strategy, list(inners.values()))
        if strategy is not None and options.on_overflow != "skip":
            msg = (
                f"`on_overflow` must be 'skip' under a tf.distribute strategy, got "
                f"{options.on_overflow!r}: a batch is not run again on one replica alone"
            )
            raise BackendError(msg)
        detector = _detector(options.detector, strategy)
        guarded = guarded_variables(options.restore_on_skip)
        check_rewritten(model, plan.policy)
        for inner in inners.values():
            check_state(inner, plan.policy.optimizer_state)
        by_graph = None
        if plan.policy.by == "graph":
            by_graph = proved(model, plan.policy, options.example)
        came = CameLow.of(model, previous, moves=moves)
        if previous is None:
            _warn_lowered(model, plan)
        with model.distribute_strategy.scope():
            masters = cast_variables(model, list(inners.values()), plan, previous, came)
            unprotect(model)  # of an earlier prepare
            beside = [stored for one in masters.values() for stored in one.beside]
            guard = BufferGuard(model, guarded, detector, beside)
            apply_plan(model, plan, guard, by_graph)
            trained = {id(v) for v in model.trainable_variables}
            first = Preparation(
                masters,
                frozen={key: one for key, one in masters.items() if key not in trained},
                guard=guard,
                detector=detector,
                after_step=options.after_step,
                counts_lost=measures(plan.policy, options.count_lost_updates),
            )
            wrappers = _wrap(model, inners, owned, plan.policy, first)
            if previous is not None and previous.built:
                _take_over(next(iter(wrappers.values())), previous)
            for one in masters.values():
                redirect_assignments(one)
        pairs = {name: (wrapper, owned[name]) for name, wrapper in wrappers.items()}
        amp = KerasAmp(model, pairs, plan, options, detector=detector, strategy=strategy)
        paths = variable_names(model)
        amp.widened = {paths[key]: dtype for key, dtype in came.trained.items()}
        protect(amp)
        return amp

    def driver(self) -> Driver[KerasAmp]:
        """Return what builds and trains an experiment's model, and reads and writes weights."""
        from mpcore_tensorflow.driver import KerasDriver

        return KerasDriver()

    def callback(self) -> MakeCallback[KerasAmp]:
        """Return what makes a callback of ``fit``."""
        from mpcore_tensorflow.callback import StepCallback

        return StepCallback


def _warn_lowered(model: keras.Model, plan: Plan) -> None:
    """Say which layers with a float32 of their own are lowered all the same."""
    lowered = [
        path
        for path in set_apart(model)
        if plan[path].compute in _LOW and not plan[path].rule.startswith("rule: ")
    ]
    if lowered:
        keeping = "".join(f".full({path!r})" for path in lowered[:3])
        msg = (
            f"{', '.join(lowered[:9])} may have been given dtype='float32', which Keras does not "
            f"tell from its default: computed in {plan[lowered[0]].compute}; "
            f"policy{keeping} keeps float32, policy.lower(...) says that it is meant"
        )
        warn_user(msg)


def _wrap(
    model: keras.Model,
    inners: Mapping[str, keras.optimizers.Optimizer],
    owned: Mapping[str, list[keras.Variable] | None],
    policy: Policy,
    first: Preparation,
) -> dict[str, TransactionalOptimizer]:
    """Return the optimizers, ready; those after the first share its loss scale.

    Args:
        model: the model, its plan applied.
        inners: the user's optimizers.
        owned: the weights of each; None for all that are trainable.
        policy: the policy.
        first: the preparation of the first one, which saves what is frozen.
    """
    made: dict[str, TransactionalOptimizer] = {}
    preparation = first
    for name, inner in inners.items():
        weights = owned[name]
        variables = model.trainable_variables if weights is None else weights
        made[name] = TransactionalOptimizer.prepared(inner, policy, variables, preparation)
        if preparation is first:
            preparation = replace(first, shared=made[name], frozen={})
    return made


def _take_over(wrapper: TransactionalOptimizer, previous: TransactionalOptimizer) -> None:
    """Let the counts of an earlier ``prepare`` live on, and its loss scale under the same rule."""
    wrapper.optimizer_steps = previous.optimizer_steps
    if previous.rule == wrapper.rule:
        wrapper.state = previous.state


def _masters(model: keras.Model) -> dict[int, Any]:
    """Return what holds the master values of 16-bit variables, by their ``id``.

    In a model that was loaded the optimizer holds it for those that are trained, and what was
    saved of the frozen ones waits there.
    """
    found = {id(v): master_state_of(v) for v in model.variables if master_state_of(v) is not None}
    optimizer = getattr(model, "optimizer", None)
    if not found and isinstance(optimizer, TransactionalOptimizer) and optimizer.master_states:
        any_of_them = next(iter(optimizer.master_states.values()))
        return {id(v): optimizer.master_states.get(id(v), any_of_them) for v in _stored_low(model)}
    return found


def _stored_low(model: keras.Model) -> list[Any]:
    return [v for v in model.variables if v.value.dtype in (tf.bfloat16, tf.float16)]


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _check_known(model: keras.Model, optimizer: keras.Optimizer) -> None:
    known = {optimizer._var_key(variable) for variable in model.variables}
    if not optimizer._trainable_variables_indices.keys() <= known:
        msg = (
            "`optimizer` must hold parameters of `model`, or be new, got a "
            f"{_kind(optimizer)} built for those of another: make a new one"
        )
        raise OptimizerError(msg)


def _owned(model: keras.Model, optimizers: Mapping[str, Any]) -> dict[str, list[Any] | None]:
    """Return the weights that each of several optimizers moves; None for one: all there are."""
    if len(optimizers) == 1:
        name, optimizer = next(iter(optimizers.items()))
        left = [v for v in model.trainable_variables if not _holds(optimizer, v)]
        if optimizer.built and left:
            msg = (
                "`optimizer` must hold all trainable parameters of `model`, it was built without "
                f"{left[0].path}: make a new one, or set trainable = False on what it leaves out"
            )
            raise OptimizerError(msg)
        return {name: None}
    for name, optimizer in optimizers.items():
        if isinstance(optimizer, TransactionalOptimizer):
            msg = f"`optimizer` {name!r} must not be prepared already: pass its inner_optimizer"
            raise OptimizerError(msg)
        if not optimizer.built:
            msg = (
                f"`optimizer` {name!r} must be built, so that it says what it moves: call "
                f"{name}.build(model.part.trainable_variables) before mpcore.prepare"
            )
            raise OptimizerError(msg)
    return {
        name: [v for v in model.trainable_variables if _holds(optimizer, v)]
        for name, optimizer in optimizers.items()
    }


def _holds(optimizer: keras.Optimizer, variable: keras.Variable) -> bool:
    return optimizer._var_key(variable) in optimizer._trainable_variables_indices


def _previous(model: keras.Model, optimizers: Mapping[str, Any]) -> TransactionalOptimizer | None:
    """Return the wrapper of an earlier ``prepare``, if it is what is passed."""
    first = next(iter(optimizers.values()))
    if isinstance(first, TransactionalOptimizer):
        return first
    if is_prepared(model):
        msg = (
            f"`model` must not be prepared twice, this {type(model).__name__} was: build it "
            "anew, or pass amp.optimizer to change its policy"
        )
        raise BackendError(msg)
    return None


def _detector(
    asked: str | OverflowDetector, strategy: tf.distribute.Strategy | None
) -> OverflowDetector:
    device = EmulatedAscend.active()
    kinds = {"values": OverflowDetector()}
    if device is not None:
        kinds["status_register"] = device.detector
    found = find_detector(asked, kinds, _overflow_kind())
    if strategy is not None and found.kind != "values":
        msg = (
            f"`detector` must be 'values' on {strategy.num_replicas_in_sync} replicas, got "
            f"{found.kind!r}: the registers of several devices are not read"
        )
        raise BackendError(msg)
    return found


def _overflow_kind() -> str:
    return "values" if EmulatedAscend.active() is None else "status_register"
