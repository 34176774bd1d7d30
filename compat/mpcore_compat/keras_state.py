"""Keras' own variables of a loss scale, moved by the core's transition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from mpcore.scaling.transition import LossScale, transition

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ScaledOptimizer"]

_NEVER = 2**30  # below zero by this much, no count of finite steps reaches its interval


def _where(condition: Any, x: Any, y: Any) -> Any:
    """Choose by value; without an operation where the branch is known already."""
    if isinstance(condition, bool):
        return x if condition else y
    return ops.where(condition, x, y)


class ScaledOptimizer(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]  # untyped
    """Keras' optimizer, in which the core decides how the scale moves.

    Of Keras are the variables, their order, the finiteness test, the skipping and its way
    through ``tf.distribute``. A subclass says where gradients are divided: before the test
    (``_judged``) or after it (``_unscaled``).

    Source: keras/src/optimizers/loss_scale_optimizer.py of Keras 3.15.1, which calls the
    methods that are replaced here.
    """

    @property
    def rule(self) -> LossScale:
        """Constants of the loss scale."""
        raise NotImplementedError

    def _judged(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return what is tested for inf and NaN."""
        raise NotImplementedError

    def _unscaled(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the true gradients, from what was tested."""
        raise NotImplementedError

    def _native_rule(self, preset: str, **changes: float) -> LossScale:
        return LossScale.named(preset, growth_interval=self._interval or 1, **changes)

    @property
    def _interval(self) -> int | None:
        """``dynamic_growth_steps``; None if no count of steps equals it, as Keras takes any."""
        steps = self.dynamic_growth_steps
        return int(steps) if steps >= 1 and steps == int(steps) else None

    @property
    def _scale(self) -> Any:
        """The scale of this step."""
        return self.dynamic_scale

    def _move(self, *, finite: bool) -> None:
        """Assign the next scale and the next count."""
        # Keras grows at equality: a count already beyond its interval, such as a loaded one,
        # waits for the next overflow.
        count, interval = self.step_counter.value, self._interval or 0
        good = ops.where(count < interval, count, count - _NEVER)
        state = (ops.convert_to_tensor(self._scale), good, 0, 0, 0, 0, -1, 0)
        scale, good, *_ = transition(self.rule, state, finite, _where, lambda value: value)
        self.step_counter.assign(ops.where(good < 0, good + _NEVER, good))
        self.dynamic_scale.assign(scale)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Update by true gradients, or skip; then move the scale.

        Args:
            grads: gradients of the scaled loss; None where a variable has none.
            trainable_variables: variables in the same order; None for those of ``build``.
        """
        self._build(trainable_variables)
        variables = trainable_variables or self._trainable_variables
        super().apply(self._judged(grads, variables), trainable_variables)

    def _build(self, trainable_variables: Any) -> None:
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(trainable_variables)

    def _stateful_handle_finite_grads(self, grads: Any, trainable_variables: Any) -> None:
        variables = trainable_variables or self._trainable_variables
        self.inner_optimizer.apply(
            self._unscaled(grads, variables), trainable_variables=trainable_variables
        )
        self._move(finite=True)

    def _stateful_handle_non_finite_grads(self) -> None:
        self._move(finite=False)

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> tuple[Any, Any]:
        """Return the new (trainable variables, optimizer variables); the way of JAX.

        Raises:
            ValueError: not built yet; with Keras' message.
        """
        if self.built:
            with self._scope(optimizer_variables):
                grads = self._judged(grads, self._trainable_variables)
        moved: tuple[Any, Any] = super().stateless_apply(
            optimizer_variables, grads, trainable_variables
        )
        return moved

    def _stateless_handle_finite_grads(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> tuple[Any, Any]:
        own = self._stateless_own(optimizer_variables, finite=True)
        with self._scope(optimizer_variables):
            trained, inner = self.inner_optimizer.stateless_apply(
                self.inner_optimizer.variables,
                self._unscaled(grads, self._trainable_variables),
                trainable_variables,
            )
        return trained, own + inner

    def _stateless_handle_non_finite_grads(
        self, optimizer_variables: Any, trainable_variables: Any
    ) -> tuple[Any, Any]:
        own = self._stateless_own(optimizer_variables, finite=False)
        return trainable_variables, [*own, *optimizer_variables[len(own) :]]

    def _stateless_own(self, optimizer_variables: Any, *, finite: bool) -> list[Any]:
        with self._scope(optimizer_variables) as scope:
            self._move(finite=finite)
        return [scope.get_current_value(variable) for variable in self._variables]

    def _scope(self, optimizer_variables: Any) -> Any:
        return keras.StatelessScope(
            state_mapping=list(zip(self.variables, optimizer_variables, strict=False))
        )
