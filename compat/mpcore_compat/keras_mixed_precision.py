"""``tf.keras.mixed_precision`` of Keras 2, for scripts that Keras 3 left without a home.

Keras 3 dropped ``get_scaled_loss`` and ``get_unscaled_gradients``; this namespace has them, and
hands on ``Policy`` and the global policy of Keras 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops
from keras.mixed_precision import Policy, global_policy, set_global_policy

from mpcore_compat.keras_state import ScaledOptimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpcore.scaling.transition import LossScale

__all__ = ["LossScaleOptimizer", "Policy", "global_policy", "set_global_policy"]


@keras.saving.register_keras_serializable(package="mpcore.tf_keras")
class LossScaleOptimizer(ScaledOptimizer):
    """Keras 2's loss scaling around an optimizer of Keras 3.

    A custom loop scales and unscales by itself::

        with tf.GradientTape() as tape:
            loss = optimizer.get_scaled_loss(loss_fn(y, model(x, training=True)))
        grads = optimizer.get_unscaled_gradients(tape.gradient(loss, weights))
        optimizer.apply_gradients(zip(grads, weights))

    ``model.fit`` does it for you, as ever. The scale stays at 1 or above and keeps its value
    where doubling it would give inf; a skipped step counts as an iteration. The variables of the
    scale come first in ``variables``, as in Keras 3; checkpoints of Keras 2 are not read.

    Source: tf_keras/mixed_precision/loss_scale_optimizer.py of tf_keras 2.21.0
    (LossScaleOptimizerV3).
    """

    def __init__(
        self,
        inner_optimizer: Any,
        dynamic: bool = True,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
    ) -> None:
        """Wrap ``inner_optimizer``.

        Args:
            inner_optimizer: a Keras optimizer.
            dynamic: whether the scale moves; a fixed one is never checked for overflow.
            initial_scale: first scale, 2**15 where None; required unless ``dynamic``.
            dynamic_growth_steps: finite steps before the scale doubles, 2000 where None.

        Raises:
            TypeError: ``inner_optimizer`` is no optimizer, or wrapped already; or ``dynamic``
                is no bool.
            ValueError: ``initial_scale`` is missing, or ``dynamic_growth_steps`` superfluous.
        """
        _check_arguments(inner_optimizer, dynamic, initial_scale, dynamic_growth_steps)
        super().__init__(
            inner_optimizer,
            float(2**15 if initial_scale is None else initial_scale),
            int(2000 if dynamic_growth_steps is None else dynamic_growth_steps),
        )
        if not dynamic:
            self.dynamic_growth_steps = None
        self.dynamic = dynamic
        self._scaled_by_keras = False

    @property
    def rule(self) -> LossScale:
        """Constants of the loss scale."""
        return self._native_rule("tf_keras")

    @property
    def loss_scale(self) -> Any:
        """The scale of the next step, float32, shape ()."""
        moving = self.dynamic and self.built
        return ops.convert_to_tensor(
            self.dynamic_scale.value if moving else self.initial_scale, "float32"
        )

    @property
    def dynamic_counter(self) -> Any:
        """Finite steps since the scale changed; None for a fixed scale."""
        if not self.dynamic:
            return None
        return self.step_counter if self.built else 0

    def get_scaled_loss(self, loss: Any) -> Any:
        """Return ``loss``, a tensor or a function that gives one, times the scale, in its dtype."""
        if callable(loss):
            return lambda: self._times_scale(loss())
        return self._times_scale(loss)

    def _times_scale(self, loss: Any) -> Any:
        return loss * ops.cast(self.loss_scale, loss.dtype)

    def get_unscaled_gradients(self, grads: Iterable[Any]) -> list[Any]:
        """Return ``grads`` times 1 / scale, in their dtypes; None stays None."""
        inverse = 1.0 / self.loss_scale
        return [
            None if grad is None else ops.multiply(grad, ops.cast(inverse, grad.dtype))
            for grad in grads
        ]

    def scale_loss(self, loss: Any) -> Any:
        """Scale the loss for ``fit``, whose gradients then arrive scaled."""
        self._scaled_by_keras = True
        return self.get_scaled_loss(loss)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Update by unscaled gradients, or skip; then move the scale.

        Args:
            grads: unscaled gradients; those of ``scale_loss`` are unscaled here.
            trainable_variables: variables in the same order; None for those of ``build``.
        """
        if self.dynamic:
            super().apply(grads, trainable_variables)
        else:
            self._build(trainable_variables)
            variables = trainable_variables or self._trainable_variables
            self.inner_optimizer.apply(self._judged(grads, variables), trainable_variables)

    def _judged(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        if not self._scaled_by_keras:
            return list(grads)
        self._scaled_by_keras = False
        return self.get_unscaled_gradients(grads)

    def _unscaled(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return list(grads)

    def _stateful_handle_non_finite_grads(self) -> None:
        super()._stateful_handle_non_finite_grads()
        self.inner_optimizer.iterations.assign_add(1)

    def stateless_apply(self, *args: Any) -> tuple[Any, Any]:
        """Refuse: Keras 2 has no such method."""
        from mpcore.errors import BackendError

        msg = "`stateless_apply` is not in Keras 2: use mpcore_compat.keras.LossScaleOptimizer"
        raise BackendError(msg)

    def get_config(self) -> dict[str, Any]:
        """Return Keras 2's four entries."""
        config = super().get_config()
        return {
            "inner_optimizer": config["inner_optimizer"],
            "dynamic": self.dynamic,
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }


def _check_arguments(
    inner_optimizer: Any,
    dynamic: Any,
    initial_scale: float | None,
    dynamic_growth_steps: int | None,
) -> None:
    wraps = isinstance(inner_optimizer, keras.optimizers.LossScaleOptimizer)
    if wraps or not isinstance(inner_optimizer, keras.optimizers.Optimizer):
        msg = (
            "`inner_optimizer` must be a keras.optimizers.Optimizer that no LossScaleOptimizer "
            f"wraps, got {inner_optimizer!r}"
        )
        raise TypeError(msg)
    if not isinstance(dynamic, bool):
        msg = f"`dynamic` must be True or False, got {dynamic!r}; the scale is `initial_scale`"
        raise TypeError(msg)
    if not dynamic and initial_scale is None:
        msg = "`initial_scale` must be given with dynamic=False, got None"
        raise ValueError(msg)
    if not dynamic and dynamic_growth_steps is not None:
        msg = f"`dynamic_growth_steps` must be None with dynamic=False, got {dynamic_growth_steps}"
        raise ValueError(msg)
