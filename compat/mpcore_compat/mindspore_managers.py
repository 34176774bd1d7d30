"""``mindspore.amp.DynamicLossScaleManager`` and ``FixedLossScaleManager``."""

from __future__ import annotations

from typing import Any

from mindspore import amp

from mpcore.scaling.transition import LossScale, LossScaleState, check_abort, transition
from mpcore_compat.mindspore_cells import DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell

__all__ = ["DynamicLossScaleManager", "FixedLossScaleManager"]


class FixedLossScaleManager(amp.FixedLossScaleManager):  # type: ignore[misc]  # untyped
    """A constant scale, with or without skipping of overflows.

    MindSpore refuses one that skips on CPU; here ``build_train_network`` and ``Model`` take it.

    Source: mindspore/train/loss_scale_manager.py of MindSpore 2.10.0.
    """

    def __init__(
        self, loss_scale: float = 128.0, drop_overflow_update: bool = True, *, safe: bool = False
    ) -> None:
        """Keep ``loss_scale``.

        Args:
            loss_scale: the scale, >= 1.
            drop_overflow_update: whether a step that overflows is skipped.
            safe: unscale in float32.

        Raises:
            ValueError: ``loss_scale`` is below 1, as MindSpore says.
        """
        super().__init__(loss_scale, drop_overflow_update)
        self.safe = safe

    def get_update_cell(self) -> FixedLossScaleUpdateCell | None:
        """Return the cell that a train step asks; None where overflows are not skipped."""
        if not self.get_drop_overflow_update():
            return None
        return FixedLossScaleUpdateCell(self.get_loss_scale(), safe=self.safe)


class DynamicLossScaleManager(amp.DynamicLossScaleManager):  # type: ignore[misc]  # untyped
    """A scale in Python numbers that falls on overflow and grows after a run of finite steps.

    By default as MindSpore, value and type: an int stays one until the first back-off, and 1 is
    an int again where the floor holds; there is no cap. ``safe=True`` keeps it in [1, 2**24],
    in the cell of ``get_update_cell`` too. Both end a run after more than 1000 skips in a row.

    Source: mindspore/train/loss_scale_manager.py of MindSpore 2.10.0.

    Attributes:
        loss_scale: the scale, a Python number.
        cur_iter: number of the step to come, from 1.
        last_overflow_iter: step of the last overflow, 0 before.
        bad_step: skipped steps in a row.
        bad_step_max: how many of them are allowed.
        increase_ratio: multiplier on growth.
        decrease_ratio: multiplier on overflow.
    """

    loss_scale: Any
    last_overflow_iter: int
    bad_step: int

    def __init__(
        self,
        init_loss_scale: float = 2**24,
        scale_factor: float = 2,
        scale_window: int = 2000,
        *,
        safe: bool = False,
    ) -> None:
        """Start at ``init_loss_scale``.

        Args:
            init_loss_scale: first scale, >= 1; <= 2**24 under ``safe``.
            scale_factor: multiplier and divisor, > 0; > 1 under ``safe``.
            scale_window: finite steps before one growth, a positive int.
            safe: keep mpcore's rules instead of MindSpore's defects.

        Raises:
            TypeError, ValueError: an argument of another type or range, as MindSpore does.
            PolicyError: ``safe``, and a scale or a factor out of range.
        """
        super().__init__(init_loss_scale, scale_factor, scale_window)
        self.safe = safe
        if safe:
            self._rule(init_loss_scale)

    def _rule(self, init_scale: float = 1.0) -> LossScale:
        # Read at each update, as the attributes may be set.
        changes: dict[str, Any] = {
            "growth_factor": self.increase_ratio,
            "backoff_factor": self.decrease_ratio,
            "backoff_op": "mul",
            "growth_interval": self.scale_window,
            "max_skips": self.bad_step_max,
        }
        if not self.safe:
            return LossScale.named("mindspore_manager", **changes)
        wide: dict[str, Any] = {"state_dtype": "float64", "factor_dtype": "float64"}
        return LossScale.of(init_scale=float(init_scale), **changes, **wide)

    def update_loss_scale(self, overflow: Any) -> None:
        """Move the scale after a step.

        Args:
            overflow: whether a gradient of the step was not finite.

        Raises:
            LossScaleError: a RuntimeError: more than ``bad_step_max`` skips in a row.
        """
        rule, finite = self._rule(), not overflow
        good = (self.cur_iter - self.last_overflow_iter - 1) % self.scale_window
        scale = self.loss_scale
        if self.safe:  # what was assigned may be inf, from which no step would return
            scale = min(max(scale, rule.min_scale), rule.max_scale)
        before = LossScaleState(scale, good, skips_in_a_row=self.bad_step)
        after = LossScaleState(*transition(rule, before, finite, _pick, lambda value: value))
        floored = not finite and scale * self.decrease_ratio < rule.min_scale
        self.loss_scale = int(after.scale) if floored else after.scale
        self.bad_step = after.skips_in_a_row
        if overflow:
            self.last_overflow_iter = self.cur_iter
        check_abort(rule, before, after)
        self.cur_iter += 1

    def get_update_cell(self) -> DynamicLossScaleUpdateCell:
        """Return the cell that a train step asks; it starts at the present scale."""
        return DynamicLossScaleUpdateCell(
            self.loss_scale, self.scale_factor, self.scale_window, safe=self.safe
        )


def _pick(condition: Any, x: Any, y: Any) -> Any:
    return x if condition else y
