"""The loss-scaling cells of ``mindspore.nn``, on CPU too."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import nn, ops

from mpcore.scaling.transition import LossScale
from mpcore_compat.mindspore_state import factors, moved, safe_rule
from mpcore_mindspore.shims import guarded

__all__ = [
    "DynamicLossScaleUpdateCell",
    "FixedLossScaleUpdateCell",
    "TrainOneStepWithLossScaleCell",
]


def _overflowed(grad: Any) -> Any:
    return 1.0 - ops.isfinite(grad).all().astype(ms.float32)


def _wide(grad: Any) -> Any:
    return grad.astype(ms.float32)


class FixedLossScaleUpdateCell(nn.FixedLossScaleUpdateCell):  # type: ignore[misc]  # untyped
    """Keeps the scale and hands on whether there was an overflow.

    Source: mindspore/nn/wrap/loss_scale.py of MindSpore 2.10.0.

    Attributes:
        safe: whether a step that is built around it unscales in float32.
    """

    def __init__(self, loss_scale_value: float, *, safe: bool = False) -> None:
        """Keep ``loss_scale_value``."""
        super().__init__(loss_scale_value)
        self.safe = safe


class DynamicLossScaleUpdateCell(nn.DynamicLossScaleUpdateCell):  # type: ignore[misc]  # untyped
    """Moves a scale that a train step keeps: ``cell(loss_scale, overflow)`` returns ``overflow``.

    By default as MindSpore, bit for bit, which has no cap: the scale may reach inf, and never
    leaves it. ``safe=True`` keeps it in [1, 2**24].

    Source: mindspore/nn/wrap/loss_scale.py of MindSpore 2.10.0.

    Attributes:
        cur_iter: number of the step to come, from 1, an int32 Parameter, shape ().
        last_overflow_iter: step of the last change, 0 before, an int32 Parameter, shape ().
        rule: constants of the machine.
        safe: whether mpcore's own rules apply; also in a step that is built around it.
    """

    def __init__(
        self, loss_scale_value: float, scale_factor: float, scale_window: int, *, safe: bool = False
    ) -> None:
        """Start at ``loss_scale_value``.

        Args:
            loss_scale_value: first scale; in [1, 2**24] under ``safe``.
            scale_factor: multiplier and divisor, > 0; > 1 under ``safe``.
            scale_window: finite steps before one growth.
            safe: keep mpcore's rules instead of MindSpore's defects.

        Raises:
            PolicyError: a factor <= 0; ``safe``, and a scale or a factor out of range.
        """
        if safe:
            rule = safe_rule(
                loss_scale_value,
                scale_factor,
                growth_interval=scale_window,
                backoff_op="mul_reciprocal",
            )
        else:
            # MindSpore grows at each finite step for a window below 1, as for 1.
            interval = max(int(scale_window), 1)
            rule = LossScale.named(
                "mindspore_update_cell", growth_interval=interval, **factors(scale_factor)
            )
        super().__init__(loss_scale_value, scale_factor, scale_window)
        self.rule = rule
        self.safe = safe

    def construct(self, loss_scale: Any, overflow: Any) -> Any:
        """Assign the next scale to ``loss_scale``, a float32 Parameter; return ``overflow``."""
        now = self.cur_iter.value()
        good = now - self.last_overflow_iter.value() - 1
        scale, good = moved(self.rule, loss_scale.value(), good, ops.logical_not(overflow))
        ops.assign(loss_scale, scale)
        ops.assign(self.last_overflow_iter, now - good)
        ops.assign(self.cur_iter, now + 1)
        return overflow


class TrainOneStepWithLossScaleCell(nn.TrainOneStepWithLossScaleCell):  # type: ignore[misc]
    """One training step: ``cell(*inputs)`` returns (loss, overflow, loss scale).

    MindSpore's own, which dies on CPU as it asks an Ascend register for overflow; here the
    gradients' values are asked. On other devices (not run) nothing is changed.

    ``safe=True`` takes the gradients to float32 before they are unscaled, so the optimizer gets
    float32 gradients and float16 ones do not become 0 at large scales. It restores no BatchNorm
    statistics after an overflow: ``mpcore.prepare`` does.

    Source: mindspore/nn/wrap/loss_scale.py of MindSpore 2.10.0.
    """

    grad: Any

    def __init__(
        self, network: Any, optimizer: Any, scale_sense: Any, *, safe: bool = False
    ) -> None:
        """Bind a network that returns a loss to its optimizer.

        Args:
            network: Cell that returns a scalar loss.
            optimizer: a mindspore.nn.Optimizer over its parameters.
            scale_sense: a Cell that moves the scale, such as DynamicLossScaleUpdateCell; or a
                Tensor of shape () or (1,), a scale that ``set_sense_scale`` changes.
            safe: unscale in float32.

        Raises:
            TypeError, ValueError: ``scale_sense`` is of another type or shape, as MindSpore does.
        """
        super().__init__(network, optimizer, scale_sense)
        self.by_values = ms.get_context("device_target") == "CPU"
        self.safe = safe
        if safe:
            self.native_grad = self.grad
            self.grad = self.wide_grad

    def __call__(self, *inputs: Any) -> Any:
        """Run one step; an exception leaves the precision of later Cells as it was."""
        with guarded():
            return super().__call__(*inputs)

    def wide_grad(self, network: Any, weights: Any) -> Any:
        """Return a function that gives the gradients in float32."""

        def run(*inputs: Any) -> Any:
            return self.hyper_map(_wide, self.native_grad(network, weights)(*inputs))

        return run

    def get_overflow_status(self, status: Any, compute_output: Any) -> Any:
        """Return whether a gradient is inf or NaN; bool Tensor, shape ()."""
        if self.by_values:
            return self._get_distributed_overflow_status_on_infnan_mode(_overflowed, compute_output)
        return super().get_overflow_status(status, compute_output)
