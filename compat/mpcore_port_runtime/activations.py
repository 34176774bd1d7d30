"""Activations with torch's gradients where a curve bends, and torch's values far from zero.

On CPU (mindspore 2.10.0) leaky_relu halves the sum of both slopes at 0, relu6 has one at 6, and
logsigmoid and mish overflow.
"""

from __future__ import annotations

from typing import Any

from mindspore import nn, ops

__all__ = [
    "ELU",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "Mish",
    "ReLU6",
    "elu",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "logsigmoid",
    "mish",
    "relu6",
]


def softplus(x: Any) -> Any:
    """Return the logarithm of 1 + exp(x); its slope at 0 is a half."""
    above = x > 0
    power = ops.exp(ops.where(above, -x, x))
    return ops.where(above, x, ops.zeros_like(x)) + ops.log1p(power)


def logsigmoid(input: Any) -> Any:
    """Return torch.nn.functional.logsigmoid."""
    return -softplus(-input)


def leaky_relu(input: Any, negative_slope: float = 0.01) -> Any:
    """Return torch.nn.functional.leaky_relu."""
    return ops.where(input > 0, input, input * negative_slope)


def relu6(input: Any) -> Any:
    """Return torch.nn.functional.relu6."""
    return hardtanh(input, 0, 6)


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """Return torch.nn.functional.hardtanh, flat at both bounds."""
    inside = ops.logical_and(input > min_val, input < max_val)
    return ops.where(inside, input, ops.stop_gradient(ops.clamp(input, min_val, max_val)))


def elu(input: Any, alpha: float = 1.0) -> Any:
    """Return torch.nn.functional.elu, which MindSpore has of ``alpha`` 1 alone."""
    below = alpha * (ops.exp(ops.clamp(input, max=0.0)) - 1)
    return ops.where(input > 0, input, below.astype(input.dtype))


def hardswish(input: Any) -> Any:
    """Return torch.nn.functional.hardswish."""
    return input * relu6(input + 3) / 6


def mish(input: Any) -> Any:
    """Return torch.nn.functional.mish: tanh of the softplus is a fraction of powers of e."""
    above = input > 0
    power = ops.exp(ops.where(above, -input, input))
    over, under = 1 + 2 * power, power * (power + 2)
    share = ops.where(above, over / (over + 2 * power * power), under / (under + 2))
    return input * share


class LogSigmoid(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.LogSigmoid."""

    def construct(self, x: Any) -> Any:
        """Return what the function does."""
        return logsigmoid(x)


class ELU(nn.Cell):  # type: ignore[misc]
    """torch.nn.ELU; MindSpore's takes ``alpha`` 1 alone."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def construct(self, x: Any) -> Any:
        """Return what the function does."""
        return elu(x, self.alpha)


class LeakyReLU(nn.Cell):  # type: ignore[misc]
    """torch.nn.LeakyReLU."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def construct(self, x: Any) -> Any:
        """Return what the function does."""
        return leaky_relu(x, self.negative_slope)


class ReLU6(nn.Cell):  # type: ignore[misc]
    """torch.nn.ReLU6."""

    def construct(self, x: Any) -> Any:
        """Return what the function does."""
        return relu6(x)


class Hardtanh(nn.Cell):  # type: ignore[misc]
    """torch.nn.Hardtanh."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        super().__init__()
        self.min_val, self.max_val = min_val, max_val

    def construct(self, x: Any) -> Any:
        """Return what the function does."""
        return hardtanh(x, self.min_val, self.max_val)


class Hardswish(nn.Cell):  # type: ignore[misc]
    """torch.nn.Hardswish."""

    def construct(self, x: Any) -> Any:
        """Return what the function does."""
        return hardswish(x)


class Mish(nn.Cell):  # type: ignore[misc]
    """torch.nn.Mish."""

    def construct(self, x: Any) -> Any:
        """Return what the function does."""
        return mish(x)
