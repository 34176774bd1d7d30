"""Three of torch.distributions; sources: categorical.py, multivariate_normal.py, normal.py."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

__all__ = ["Categorical", "MultivariateNormal", "Normal"]

_EPS = float(np.finfo(np.float32).eps)


def _tensor(value: Any) -> Any:
    return value if isinstance(value, Tensor) else Tensor(value, ms.float32)


class Categorical:
    """torch.distributions.Categorical: one of the places of the last axis."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: Any = None) -> None:
        if (probs is None) == (logits is None):
            msg = "Either `probs` or `logits` must be specified, but not both."
            raise ValueError(msg)
        if probs is not None:
            self.probs = probs / probs.sum(-1, keepdims=True)
            self.logits = ops.log(ops.clamp(self.probs, _EPS, 1 - _EPS))
        else:
            self.logits = logits - ops.logsumexp(logits, -1, True)
            self.probs = ops.softmax(self.logits, -1)

    @property
    def mode(self) -> Any:
        """The likeliest place."""
        return self.probs.argmax(-1)

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw places; they have no gradient, and the numbers are other than torch's."""
        shape = tuple(sample_shape)
        count = int(np.prod(shape)) if shape else 1
        rows = ops.stop_gradient(self.probs).reshape((-1, self.probs.shape[-1]))
        drawn = ops.multinomial(rows, count, replacement=True)
        return drawn.swapaxes(0, 1).reshape(shape + tuple(self.probs.shape[:-1])).astype(ms.int64)

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the probability of places."""
        place = _tensor(value).astype(ms.int64).expand_dims(-1)
        shape = np.broadcast_shapes(tuple(place.shape[:-1]), tuple(self.logits.shape[:-1]))
        place = ops.broadcast_to(place, (*shape, 1))
        logits = ops.broadcast_to(self.logits, (*shape, self.logits.shape[-1]))
        return ops.gather_elements(logits, -1, place).squeeze(-1)

    def entropy(self) -> Any:
        """Return the entropy."""
        logits = ops.clamp(self.logits, float(np.finfo(np.float32).min))
        return -(logits * self.probs).sum(-1)


class _Located:
    """A density that is highest at its mean."""

    loc: Any

    @property
    def mean(self) -> Any:
        """The mean."""
        return self.loc

    @property
    def mode(self) -> Any:
        """The likeliest value."""
        return self.loc


class Normal(_Located):
    """torch.distributions.Normal."""

    def __init__(self, loc: Any, scale: Any, validate_args: Any = None) -> None:
        loc, scale = _tensor(loc), _tensor(scale)
        shape = np.broadcast_shapes(tuple(loc.shape), tuple(scale.shape))
        self.loc, self.scale = ops.broadcast_to(loc, shape), ops.broadcast_to(scale, shape)

    @property
    def stddev(self) -> Any:
        """The standard deviation."""
        return self.scale

    @property
    def variance(self) -> Any:
        """The square of the standard deviation."""
        return self.scale**2

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Draw values that mean and scale have a gradient of; other numbers than torch's."""
        shape = tuple(sample_shape) + tuple(self.loc.shape)
        return self.loc + ops.randn(*shape, dtype=self.loc.dtype) * self.scale

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw values without a gradient; other numbers than torch's."""
        return ops.stop_gradient(self.rsample(sample_shape))

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the density."""
        away = (_tensor(value) - self.loc) ** 2 / (2 * self.variance)
        return -away - ops.log(self.scale) - math.log(math.sqrt(2 * math.pi))

    def entropy(self) -> Any:
        """Return the entropy."""
        return 0.5 + 0.5 * math.log(2 * math.pi) + ops.log(self.scale)


class MultivariateNormal(_Located):
    """torch.distributions.MultivariateNormal; gradients of the mean and of the matrix."""

    def __init__(
        self,
        loc: Any,
        covariance_matrix: Any = None,
        precision_matrix: Any = None,
        scale_tril: Any = None,
        validate_args: Any = None,
    ) -> None:
        if precision_matrix is not None or (covariance_matrix is None) == (scale_tril is None):
            msg = "give a covariance_matrix or a scale_tril; a precision_matrix is not ported"
            raise ValueError(msg)
        factor = _factor(covariance_matrix) if scale_tril is None else scale_tril
        shape = np.broadcast_shapes(tuple(loc.shape[:-1]), tuple(factor.shape[:-2]))
        size = loc.shape[-1]
        self.loc = ops.broadcast_to(loc, (*shape, size))
        self.scale_tril = ops.broadcast_to(factor, (*shape, size, size))

    @property
    def covariance_matrix(self) -> Any:
        """The matrix of covariances."""
        return (self.scale_tril.expand_dims(-2) * self.scale_tril.expand_dims(-3)).sum(-1)

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw values; they have no gradient, and the numbers are other than torch's."""
        return ops.stop_gradient(self.rsample(sample_shape))

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Draw values that are differentiated by the mean and the matrix."""
        noise = ops.randn((*tuple(sample_shape), *self.loc.shape)).astype(self.loc.dtype)
        return self.loc + (self.scale_tril * noise.expand_dims(-2)).sum(-1)

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the density at values."""
        size = self.loc.shape[-1]
        rest = value - self.loc
        found: list[Any] = []
        for row in range(size):  # forward substitution
            known = sum((self.scale_tril[..., row, k] * one for k, one in enumerate(found)), 0.0)
            found.append((rest[..., row] - known) / self.scale_tril[..., row, row])
        distance = sum(one * one for one in found)
        return -0.5 * (size * math.log(2 * math.pi) + distance) - self._half_log_det()

    def entropy(self) -> Any:
        """Return the entropy."""
        return 0.5 * self.loc.shape[-1] * (1.0 + math.log(2 * math.pi)) + self._half_log_det()

    def _half_log_det(self) -> Any:
        places = range(self.loc.shape[-1])
        return sum(ops.log(self.scale_tril[..., place, place]) for place in places)


def _factor(matrix: Any) -> Any:
    """Return Cholesky's factor, a column at a time: MindSpore's has no gradient on CPU."""
    size = matrix.shape[-1]
    matrix = (matrix + matrix.swapaxes(-1, -2)) / 2  # so that its gradient is torch's
    columns: list[Any] = []
    for place in range(size):
        column = matrix[..., place]
        for before in columns:
            column = column - before * before[..., place : place + 1]
        column = column / ops.sqrt(column[..., place : place + 1])
        below = Tensor(np.arange(size) >= place)
        columns.append(ops.where(below, column, ops.zeros_like(column)))
    return ops.stack(columns, -1)
