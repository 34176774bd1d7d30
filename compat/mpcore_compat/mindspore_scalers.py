"""``mindspore.amp.DynamicLossScaler`` and ``StaticLossScaler``."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import amp, mutable, ops

from mpcore.scaling.transition import LossScale
from mpcore_compat.mindspore_state import factors, moved, safe_rule

__all__ = ["DynamicLossScaler", "StaticLossScaler"]

_map = ops.HyperMap()


def _wide(value: Any) -> Any:
    return value.astype(ms.float32)


def _scaled(scale: Any, value: Any) -> Any:
    return value * scale.astype(value.dtype)


def _unscaled(scale: Any, grad: Any) -> Any:
    return grad * ops.Reciprocal()(scale).astype(grad.dtype)


# Not MindSpore's own two methods, which hand their Parameter to a compiled function that knows it
# by its address: once a scaler is gone, the next one may be given the gone one's scale.
def _applied(scaler: Any, function: Any, inputs: Any) -> Any:
    """Return ``function(scale, value)`` of a Tensor, or of each in a tuple or list."""
    inputs = mutable(inputs)
    values = _map(_wide, inputs) if scaler.safe else inputs
    done = _map(ops.partial(function, scaler.scale_value.value()), values)
    return list(done) if isinstance(inputs, list) else done


class StaticLossScaler(amp.StaticLossScaler):  # type: ignore[misc]  # mindspore is untyped
    """A constant scale; ``adjust`` changes nothing.

    As MindSpore's own it scales in the loss's dtype and unscales in the gradients'.
    ``safe=True`` does both in float32, and returns float32.

    Source: mindspore/amp.py of MindSpore 2.10.0.

    Attributes:
        scale_value: the scale, a float32 Parameter, shape ().
    """

    def __init__(self, scale_value: float, *, safe: bool = False) -> None:
        """Keep ``scale_value``, >= 1.

        Raises:
            TypeError: it is no int or float.
            ValueError: it is below 1.
        """
        super().__init__(scale_value)
        self.safe = safe

    def scale(self, inputs: Any) -> Any:
        """Return a loss, or a tuple of Tensors, times the scale."""
        return _applied(self, _scaled, inputs)

    def unscale(self, inputs: Any) -> Any:
        """Return gradients divided by the scale."""
        return _applied(self, _unscaled, inputs)


class DynamicLossScaler(amp.DynamicLossScaler):  # type: ignore[misc]  # mindspore is untyped
    """A scale that falls when gradients overflow and grows after a run of finite steps.

    Usable in eager mode, under ``ms.jit(fullgraph=True)`` and in GRAPH_MODE. ``adjust`` moves
    the scale and skips nothing: the loop does that.

    By default it does what MindSpore does, bit for bit, also where that is wrong: gradients are
    unscaled in their own dtype, so that float16 ones become 0 above a scale of 2**24 and look
    finite, and a float16 loss overflows from a scale of 2**16 on. Above 2**126 the reciprocal of
    the scale is subnormal, which some of MindSpore's threads take for 0 and others do not: there
    gradients are all 0 or right, in MindSpore as here, and not always in both. ``safe=True`` scales
    and unscales in float32, returns float32, and keeps the scale in [1, 2**24]. What a float16 loss
    hands back to its network stays float16: compute losses in float32.

    Source: mindspore/amp.py of MindSpore 2.10.0.

    Attributes:
        scale_value: the scale, a float32 Parameter, shape ().
        counter: finite steps since the scale changed, an int32 Parameter, shape ().
        rule: constants of the machine; fixed when the scaler is made.
    """

    def __init__(
        self, scale_value: float, scale_factor: int, scale_window: int, *, safe: bool = False
    ) -> None:
        """Start at ``scale_value``.

        Args:
            scale_value: first scale, >= 1; <= 2**24 under ``safe``.
            scale_factor: multiplier and divisor, a positive int; > 1 under ``safe``.
            scale_window: finite steps before one growth, a positive int.
            safe: keep mpcore's rules instead of MindSpore's defects.

        Raises:
            TypeError, ValueError: an argument of another type or range, as MindSpore does.
            PolicyError: ``safe``, and a scale or a factor out of range.
        """
        super().__init__(scale_value, scale_factor, scale_window)
        if safe:
            self.rule = safe_rule(
                scale_value, scale_factor, growth_interval=scale_window, backoff_op="div"
            )
        else:
            self.rule = LossScale.named(
                "mindspore", growth_interval=scale_window, **factors(scale_factor)
            )
        self.safe = safe

    def scale(self, inputs: Any) -> Any:
        """Return a loss, or a tuple of Tensors, times the scale."""
        return _applied(self, _scaled, inputs)

    def unscale(self, inputs: Any) -> Any:
        """Return gradients divided by the scale."""
        return _applied(self, _unscaled, inputs)

    def adjust(self, grads_finite: Any) -> bool:
        """Move scale and counter, given whether the gradients were finite; return True.

        Args:
            grads_finite: bool Tensor, shape ().
        """
        count, window = self.counter.value(), self.scale_window
        # MindSpore grows at equality, and counts modulo the window: a counter beyond it, such
        # as a loaded one, is folded back without a growth.
        good = ops.where(count == window - 1, count, (count + 1) % window - 1)
        scale, good = moved(self.rule, self.scale_value.value(), good, grads_finite)
        ops.assign(self.scale_value, scale)
        ops.assign(self.counter, good)
        return True
