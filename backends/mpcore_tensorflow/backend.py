"""The backend: names, capabilities, and how a plan is attached to a Keras model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from mpcore.backend import Capabilities, Support
from mpcore.errors import BackendError, OptimizerError
from mpcore_tensorflow.apply import apply_plan, is_prepared
from mpcore_tensorflow.buffers import BufferGuard
from mpcore_tensorflow.layers import check_model, walk
from mpcore_tensorflow.optimizer import TransactionalOptimizer
from mpcore_tensorflow.step import KerasAmp
from mpcore_tensorflow.storage import cast_variables

if TYPE_CHECKING:
    from mpcore.plan import Layer, Plan

__all__ = ["TensorflowBackend"]

_NO_OP_LISTS = (
    "Keras casts per layer, and grappler's auto_mixed_precision rewrites whole graphs with a "
    "list of its own that takes no rules"
)
_SLOW_FLOAT16 = "float16 convolutions are emulated on a CPU and slow; bfloat16 is not"


class TensorflowBackend:
    """tf.keras: Keras 3 models on TensorFlow."""

    name = "tensorflow"

    def capabilities(self, model: Any = None, /) -> Capabilities:
        """Return what can be done on the default device; Keras does not move models."""
        del model
        on_gpu = bool(tf.config.list_physical_devices("GPU"))
        return Capabilities(
            backend=self.name,
            device="gpu:0" if on_gpu else "cpu",
            versions={"tensorflow": tf.__version__, "keras": keras.__version__},
            compute={
                "float16": Support("native", "" if on_gpu else _SLOW_FLOAT16),
                "bfloat16": Support("native"),
            },
            by={
                "op": Support("absent", _NO_OP_LISTS),
                "layer": Support("native"),
                "model": Support("native"),
            },
        )

    def layers(self, model: Any, /) -> list[Layer]:
        """Return every layer of a built model, itself first; InputLayer is left out.

        Raises:
            BackendError: no keras.Model, or one whose weights do not exist yet.
        """
        check_model(model)
        masters = getattr(getattr(model, "optimizer", None), "masters", {})
        return [entry.describe(masters) for entry in walk(model)]

    def check_pair(self, model: Any, optimizer: Any, /) -> None:
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
            _check_variables(model, optimizer)

    def attach(self, model: Any, optimizer: Any, plan: Plan, /, *, simulated: bool) -> KerasAmp:
        """Apply ``plan`` to ``model`` in place and return the object that runs its steps.

        An optimizer that ``prepare`` returned earlier (in a loaded model, say) is unwrapped;
        its scale state and masters live on.

        Raises:
            BackendError: the model is spread over several replicas, or was prepared before.
            OptimizerError: the optimizer's slots belong to weights that would be cast.
        """
        del simulated  # both 16-bit formats are native here
        if model.distribute_strategy.num_replicas_in_sync > 1:
            msg = "`model` must live on one replica: steps are not yet agreed between several"
            raise BackendError(msg)
        if is_prepared(model) and not isinstance(optimizer, TransactionalOptimizer):
            msg = (
                f"`model` must not be prepared twice, this {type(model).__name__} was: build it "
                "anew, or pass amp.optimizer to change its policy"
            )
            raise BackendError(msg)
        policy = plan.policy
        previous = optimizer if isinstance(optimizer, TransactionalOptimizer) else None
        inner = optimizer if previous is None else previous.inner_optimizer
        masters = cast_variables(model, inner, plan, previous)
        guard = BufferGuard(model)
        apply_plan(model, plan, guard)
        wrapper = TransactionalOptimizer(inner, policy.scaling, policy.master)
        wrapper.adopt(masters)
        wrapper.build(model.trainable_variables)
        wrapper.guard = guard
        if previous is not None and previous.built and previous.rule == policy.scaling:
            wrapper.state = previous.state
        return KerasAmp(model, wrapper, plan)

    def compare_driver(self) -> Any:
        """Return the backend's part in comparisons."""
        from mpcore_tensorflow.driver import KerasDriver  # only comparisons need it

        return KerasDriver()


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _check_variables(model: Any, optimizer: Any) -> None:
    try:
        optimizer._check_variables_are_known(model.trainable_variables)
    except ValueError as exc:
        msg = (
            "`optimizer` must hold parameters of `model`, or be new, got a "
            f"{_kind(optimizer)} built for those of another: make a new one"
        )
        raise OptimizerError(msg) from exc
