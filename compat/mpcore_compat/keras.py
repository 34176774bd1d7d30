"""``keras.optimizers.LossScaleOptimizer``, decided by mpcore's core.

Change the import line of a script: ``from mpcore_compat.keras import LossScaleOptimizer``.
``mixed_precision`` is the namespace of Keras 2, whose two methods Keras 3 no longer has.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from mpcore.scaling.transition import LossScale
from mpcore_compat import keras_mixed_precision as mixed_precision
from mpcore_compat.keras_state import ScaledOptimizer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LossScaleOptimizer", "mixed_precision"]

_NAME = "LossScaleOptimizer"


class LossScaleOptimizer(ScaledOptimizer):
    """An optimizer whose loss scale follows the overflows; steps that overflow are skipped.

    By default it does what Keras does, bit for bit, also where that is wrong: the scale may
    reach 0, after which a finite step writes NaN weights, and inf, which it never leaves.
    ``safe=True`` keeps the scale in [1, 2**24], whatever was loaded or assigned; scales the loss
    and divides the gradients in float32; looks for inf and NaN after the division; and lets the
    replicas of a ``tf.distribute`` strategy agree on a skip, where Keras asks the first one
    alone. It restores no BatchNorm statistics: ``mpcore.prepare`` does.

    Files go both ways. An optimizer made without ``safe`` is written as
    ``keras.optimizers.LossScaleOptimizer``, with the same configuration and variables: plain
    Keras reads it, and where this module is imported it comes back as this class. Plain Keras
    refuses a file written with ``safe=True``, naming the argument.

    Source: keras/src/optimizers/loss_scale_optimizer.py of Keras 3.15.1.

    Attributes:
        inner_optimizer: the optimizer that gets true gradients.
        dynamic_scale: the scale, float32, shape (); exists once built, as the next one.
        step_counter: finite steps since the scale changed, int32, shape ().
        safe: whether mpcore's own rules apply.
    """

    # The name under which it is written into files: see above.
    __module__ = "keras.optimizers"

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        *,
        safe: bool = False,
        **kwargs: Any,
    ) -> None:
        """Wrap ``inner_optimizer``; its own ``loss_scale_factor`` is switched off.

        Args:
            inner_optimizer: a Keras optimizer.
            initial_scale: first scale, dimensionless; in [1, 2**24] under ``safe``.
            dynamic_growth_steps: finite steps before the scale doubles.
            name: name of the optimizer.
            safe: keep mpcore's rules instead of Keras' defects.
            kwargs: what Keras still takes from old configurations: ``dynamic=True`` and the
                defaults of its base class.

        Raises:
            ValueError: another keyword, or another value of one; with Keras' message.
            PolicyError: ``safe``, and a scale or an interval out of range.
        """
        if safe:
            _safe_rule(initial_scale, dynamic_growth_steps)
        super().__init__(inner_optimizer, initial_scale, dynamic_growth_steps, name=name, **kwargs)
        self.safe = safe

    @property
    def rule(self) -> LossScale:
        """Constants of the loss scale."""
        if self.safe:
            return _safe_rule(self.initial_scale, self.dynamic_growth_steps)
        # Keras has no floor at all: a negative scale is halved too.
        return self._native_rule("keras", min_scale=-math.inf)

    @property
    def _scale(self) -> Any:
        if not self.safe:
            return super()._scale
        # What was loaded or assigned may be 0 or inf, from which no step would return.
        return ops.clip(self.dynamic_scale, self.rule.min_scale, self.rule.max_scale)

    def scale_loss(self, loss: Any) -> Any:
        """Return ``loss`` times the scale; the gradients of that go to ``apply``."""
        if not self.safe:
            return super().scale_loss(loss)
        scale = self._scale if self.built else float(self.initial_scale)
        return ops.multiply(ops.cast(loss, "float32"), scale)

    def _judged(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self._divided(grads, variables) if self.safe else list(grads)

    def _unscaled(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return list(grads) if self.safe else self._divided(grads, variables)

    def _divided(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return true gradients, under ``safe`` in float32."""
        # What Keras' float8 layers hand on as a gradient is a new value, in no need of a scale.
        return [
            grad
            if grad is None or self._overwrite_variable_with_gradient(variable)
            else ops.divide(ops.cast(grad, "float32") if self.safe else grad, self._scale)
            for grad, variable in zip(grads, variables, strict=False)
        ]

    def check_finite(self, grads: Any) -> Any:
        """Return whether no gradient holds inf or NaN; under ``safe``, in any replica."""
        finite = super().check_finite(grads)
        return _agreed(finite) if self.safe else finite

    def get_config(self) -> dict[str, Any]:
        """Return Keras' four entries, and ``safe`` where it is on."""
        config: dict[str, Any] = super().get_config()
        return config | ({"safe": True} if self.safe else {})


def _safe_rule(initial_scale: float, dynamic_growth_steps: int) -> LossScale:
    scale = float(np.float32(initial_scale))  # what the variable will hold
    return LossScale(init_scale=scale, growth_interval=dynamic_growth_steps)


def _agreed(finite: Any) -> Any:
    """Return whether ``finite`` holds in every replica of the strategy, if there is one."""
    if keras.backend.backend() != "tensorflow":
        return finite
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return finite
    bad = context.all_reduce(tf.distribute.ReduceOp.SUM, 1.0 - tf.cast(finite, tf.float32))
    return bad == 0


# Files name it so, as they would without a registration; the decorator would put "package>"
# before it, which plain Keras refuses for a class of its own.
keras.saving.get_custom_objects()[_NAME] = LossScaleOptimizer
