"""Some of torch.distributions, from its files of their names, and kl.py (torch 2.13.0)."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mpcore_port_runtime.activations import softplus
from mpcore_port_runtime.initial_numbers import own_draws
from mpcore_port_runtime.losses import binary_cross_entropy_with_logits

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "Independent",
    "MultivariateNormal",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Uniform",
    "kl_divergence",
]

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


class OneHotCategorical:
    """torch.distributions.OneHotCategorical: one place of the last axis is 1, the others are 0."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: Any = None) -> None:
        self._places = Categorical(probs, logits)

    @property
    def probs(self) -> Any:
        """The probability of each place."""
        return self._places.probs

    @property
    def logits(self) -> Any:
        """The logarithm of the probability of each place."""
        return self._places.logits

    @property
    def mean(self) -> Any:
        """The mean."""
        return self._places.probs

    @property
    def mode(self) -> Any:
        """The likeliest value."""
        return self._hot(self._places.mode)

    @property
    def variance(self) -> Any:
        """The square of the standard deviation."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw values; they have no gradient, and the numbers are other than torch's."""
        return self._hot(self._places.sample(sample_shape))

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the probability of values."""
        return self._places.log_prob(_tensor(value).argmax(-1))

    def entropy(self) -> Any:
        """Return the entropy."""
        return self._places.entropy()

    def _hot(self, places: Any) -> Any:
        size = self.probs.shape[-1]
        hot = np.eye(size)[ops.stop_gradient(places).asnumpy()]
        return Tensor(hot).astype(self.probs.dtype)


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """The same, whose draws have the gradient of the probabilities."""

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Draw values with that gradient; other numbers than torch's."""
        drawn = self.sample(sample_shape)
        return drawn + (self.probs - ops.stop_gradient(self.probs))


class Bernoulli:
    """torch.distributions.Bernoulli: 1 with a probability, else 0."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: Any = None) -> None:
        if (probs is None) == (logits is None):
            msg = "Either `probs` or `logits` must be specified, but not both."
            raise ValueError(msg)
        if probs is not None:
            self.probs = _tensor(probs)
            inside = ops.clamp(self.probs, _EPS, 1 - _EPS)
            self.logits = ops.log(inside) - ops.log1p(-inside)
        else:
            self.logits = _tensor(logits)
            self.probs = ops.sigmoid(self.logits)

    @property
    def mean(self) -> Any:
        """The mean."""
        return self.probs

    @property
    def mode(self) -> Any:
        """The likelier value; NaN where both are equally likely."""
        likelier = (self.probs >= 0.5).astype(self.probs.dtype)
        return ops.where(self.probs == 0.5, ops.full_like(likelier, np.nan), likelier)

    @property
    def variance(self) -> Any:
        """The square of the standard deviation."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw values; they have no gradient, and the numbers are other than torch's."""
        shape = tuple(sample_shape) + tuple(self.probs.shape)
        below = ops.rand(*shape) if shape else ops.rand(1).reshape(())
        return (below < ops.stop_gradient(self.probs)).astype(self.probs.dtype)

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the probability of values."""
        return -binary_cross_entropy_with_logits(self.logits, _tensor(value), reduction="none")

    def entropy(self) -> Any:
        """Return the entropy."""
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")


class Independent:
    """torch.distributions.Independent: the last axes of a distribution are one event."""

    def __init__(
        self, base_distribution: Any, reinterpreted_batch_ndims: int, validate_args: Any = None
    ) -> None:
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    @property
    def mean(self) -> Any:
        """The mean."""
        return self.base_dist.mean

    @property
    def mode(self) -> Any:
        """The likeliest value."""
        return self.base_dist.mode

    @property
    def variance(self) -> Any:
        """The square of the standard deviation."""
        return self.base_dist.variance

    @property
    def stddev(self) -> Any:
        """The standard deviation."""
        return ops.sqrt(self.base_dist.variance)

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw values without a gradient; other numbers than torch's."""
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Draw values with the gradient that the distribution has; other numbers than torch's."""
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the probability of events."""
        return self._summed(self.base_dist.log_prob(value))

    def entropy(self) -> Any:
        """Return the entropy of events."""
        return self._summed(self.base_dist.entropy())

    def _summed(self, each: Any) -> Any:
        count = self.reinterpreted_batch_ndims
        return each.sum(tuple(range(-count, 0))) if count else each


class Uniform:
    """torch.distributions.Uniform."""

    def __init__(self, low: Any, high: Any, validate_args: Any = None) -> None:
        low, high = _tensor(low), _tensor(high)
        shape = np.broadcast_shapes(tuple(low.shape), tuple(high.shape))
        self.low, self.high = ops.broadcast_to(low, shape), ops.broadcast_to(high, shape)

    @property
    def mean(self) -> Any:
        """The mean."""
        return (self.high + self.low) / 2

    @property
    def stddev(self) -> Any:
        """The standard deviation."""
        return (self.high - self.low) / 12**0.5

    @property
    def variance(self) -> Any:
        """The square of the standard deviation."""
        return (self.high - self.low) ** 2 / 12

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Draw values that both bounds have a gradient of; other numbers than torch's."""
        shape = tuple(sample_shape) + tuple(self.low.shape)
        part = ops.rand(*shape) if shape else ops.rand(1).reshape(())
        return self.low + part * (self.high - self.low)

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw values without a gradient; other numbers than torch's."""
        return ops.stop_gradient(self.rsample(sample_shape))

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the density."""
        value = _tensor(value)
        inside = ops.logical_and(self.low <= value, self.high > value)
        return ops.log(inside.astype(self.low.dtype)) - ops.log(self.high - self.low)

    def entropy(self) -> Any:
        """Return the entropy."""
        return ops.log(self.high - self.low)


class Beta:
    """torch.distributions.Beta; what is drawn of it has no gradient."""

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: Any = None) -> None:
        one, zero = _tensor(concentration1), _tensor(concentration0)
        shape = np.broadcast_shapes(tuple(one.shape), tuple(zero.shape))
        self.concentration1 = ops.broadcast_to(one, shape)
        self.concentration0 = ops.broadcast_to(zero, shape)

    @property
    def mean(self) -> Any:
        """The mean."""
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self) -> Any:
        """The square of the standard deviation."""
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total**2 * (total + 1))

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw values by numpy, without a gradient; other numbers than torch's."""
        one, zero = self.concentration1.asnumpy(), self.concentration0.asnumpy()
        shape = tuple(sample_shape) + one.shape
        drawn = own_draws().beta(one, zero, shape)
        return Tensor(np.asarray(drawn), self.concentration1.dtype)

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the density.

        Source: ``Dirichlet.log_prob`` in torch/distributions/dirichlet.py, torch 2.13.0, of
        (value, 1 - value).
        """
        one, zero = _floats(self.concentration1), _floats(self.concentration0)
        value = _floats(_tensor(value))
        density = ops.xlogy(one - 1, value) + ops.xlogy(zero - 1, 1 - value)
        made = density + ops.lgamma(one + zero) - ops.lgamma(one) - ops.lgamma(zero)
        return made.astype(self.concentration1.dtype)

    def entropy(self) -> Any:
        """Return the entropy."""
        one, zero = _floats(self.concentration1), _floats(self.concentration0)
        both = ops.lgamma(one) + ops.lgamma(zero) - ops.lgamma(one + zero)
        parts = (one - 1) * ops.digamma(one) + (zero - 1) * ops.digamma(zero)
        made = both - parts + (one + zero - 2) * ops.digamma(one + zero)
        return made.astype(self.concentration1.dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        msg = (
            f"`{name}` of Beta is not ported: mean, variance, sample, log_prob and entropy are; "
            "rsample's gradient has no equal in MindSpore"
        )
        raise NotImplementedError(msg)


def _floats(value: Any) -> Any:
    """Return at least float32: MindSpore has no kernels of the gamma function for less."""
    return value if value.dtype is ms.float64 else value.astype(ms.float32)


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


def kl_divergence(p: Any, q: Any) -> Any:
    """Return torch.distributions.kl_divergence of two distributions of one kind.

    Raises:
        NotImplementedError: their pair is not ported.
    """
    found = next(
        (of for kind, of in _DIVERGENCES if isinstance(p, kind) and isinstance(q, kind)), None
    )
    if found is None:
        msg = f"kl_divergence of {type(p).__name__} and {type(q).__name__} is not ported"
        raise NotImplementedError(msg)
    return found(p, q)


def _of_normals(p: Normal, q: Normal) -> Any:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ops.log(ratio))


def _of_categories(p: Any, q: Any) -> Any:
    each = p.probs * (p.logits - q.logits)
    return _with_bounds(each, q.probs == 0, p.probs == 0).sum(-1)


def _of_bernoullis(p: Bernoulli, q: Bernoulli) -> Any:
    ones = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    zeros = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    ones = _with_bounds(ones, q.probs == 0, p.probs == 0)
    return ones + _with_bounds(zeros, q.probs == 1, p.probs == 1)


def _of_independents(p: Independent, q: Independent) -> Any:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        msg = "kl_divergence of events of other numbers of axes"
        raise NotImplementedError(msg)
    return p._summed(kl_divergence(p.base_dist, q.base_dist))


def _with_bounds(each: Any, impossible: Any, never: Any) -> Any:
    """Return the parts, infinite where ``q`` excludes what ``p`` gives, 0 where ``p`` does."""
    each = ops.where(impossible, ops.full_like(each, np.inf), each)
    return ops.where(never, ops.zeros_like(each), each)


_DIVERGENCES: tuple[tuple[type, Any], ...] = (
    (Normal, _of_normals),
    (Categorical, _of_categories),
    (OneHotCategorical, _of_categories),
    (Bernoulli, _of_bernoullis),
    (Independent, _of_independents),
)
