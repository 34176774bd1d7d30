"""Layers of torch that few scripts have: norms, distances, dropout of rows and volumes, losses.

Source: torch/nn/modules of torch 2.13.0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import nn, ops

from mpcore_port_runtime.functional import as_tuple, rms_norm
from mpcore_port_runtime.rarer_functions import (
    channel_shuffle,
    hinge_embedding_loss,
    local_response_norm,
    multi_margin_loss,
    pairwise_distance,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "AlphaDropout",
    "Bilinear",
    "ChannelShuffle",
    "Dropout1d",
    "Dropout3d",
    "FloatFunctional",
    "HingeEmbeddingLoss",
    "LocalResponseNorm",
    "MultiMarginLoss",
    "PairwiseDistance",
    "ParameterDict",
    "RMSNorm",
    "RReLU",
    "alpha_dropout",
    "bilinear",
    "rrelu",
]


class FloatFunctional(nn.Cell):  # type: ignore[misc]
    """torch.nn.quantized.FloatFunctional: sums and products that a quantizer could watch."""

    def construct(self, x: Any) -> Any:
        """Raise, as torch's does."""
        msg = "FloatFunctional is not intended to use the 'forward'. Please use the other methods"
        raise RuntimeError(msg)

    def add(self, x: Any, y: Any) -> Any:
        """Return the sum."""
        return x + y

    def add_scalar(self, x: Any, y: float) -> Any:
        """Return the sum with a number."""
        return x + y

    def mul(self, x: Any, y: Any) -> Any:
        """Return the product."""
        return x * y

    def mul_scalar(self, x: Any, y: float) -> Any:
        """Return the product with a number."""
        return x * y

    def cat(self, x: Any, dim: int = 0) -> Any:
        """Return tensors joined along an axis."""
        return ops.concat(tuple(x), dim)

    def add_relu(self, x: Any, y: Any) -> Any:
        """Return the sum, zeros in place of what is below."""
        return ops.relu(x + y)

    def matmul(self, x: Any, y: Any) -> Any:
        """Return the product of matrices."""
        return ops.matmul(x, y)


class RMSNorm(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.RMSNorm."""

    def __init__(
        self, normalized_shape: Any, eps: float | None = None, elementwise_affine: bool = True
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = as_tuple(normalized_shape), eps
        self.weight = ms.Parameter(ops.ones(self.normalized_shape)) if elementwise_affine else None

    def construct(self, x: Any) -> Any:
        """Return ``x`` over its root mean square along the last axes."""
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)


class LocalResponseNorm(nn.Cell):  # type: ignore[misc]
    """torch.nn.LocalResponseNorm."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.settings = (size, alpha, beta, k)

    def construct(self, x: Any) -> Any:
        """Return ``x`` over a power of what its neighbouring channels are."""
        return local_response_norm(x, *self.settings)


class PairwiseDistance(nn.Cell):  # type: ignore[misc]
    """torch.nn.PairwiseDistance."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.settings = (p, eps, keepdim)

    def construct(self, x1: Any, x2: Any) -> Any:
        """Return the distance of each pair of rows."""
        return pairwise_distance(x1, x2, *self.settings)


class ChannelShuffle(nn.Cell):  # type: ignore[misc]
    """torch.nn.ChannelShuffle."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def construct(self, x: Any) -> Any:
        """Return ``x`` with the channels of its groups mixed."""
        return channel_shuffle(x, self.groups)


class _RowsOut(nn.Cell):  # type: ignore[misc]
    """Leaves whole rows out, of so many last axes, and enlarges the others."""

    axes = 1

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = float(p)

    def construct(self, x: Any) -> Any:
        """Return ``x`` with whole rows left out, in training."""
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return x * 0
        shape = (*x.shape[: x.ndim - self.axes], *(1,) * self.axes)
        return x * ops.dropout(ops.ones(shape, x.dtype), self.p, True)


class Dropout1d(_RowsOut):
    """torch.nn.Dropout1d, of (N, C, L) and (C, L)."""


class Dropout3d(_RowsOut):
    """torch.nn.Dropout3d, of (N, C, D, H, W) and (C, D, H, W)."""

    axes = 3


_ALPHA = -1.7580993408473766


def alpha_dropout(input: Any, p: float = 0.5, training: bool = False) -> Any:
    """Return torch.nn.functional.alpha_dropout: mean and spread stay, as SELU wants."""
    if not training or p == 0:
        return input
    if p == 1:
        return input * 0
    kept = ops.dropout(ops.ones_like(input), float(p), True) > 0
    scale = 1 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    shift = -scale * _ALPHA * p
    return ops.where(kept, input, ops.full_like(input, _ALPHA)) * scale + shift


class AlphaDropout(nn.Cell):  # type: ignore[misc]
    """torch.nn.AlphaDropout."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = float(p)

    def construct(self, x: Any) -> Any:
        """Return ``x`` with elements at SELU's lowest value, in training."""
        return alpha_dropout(x, self.p, self.training)


def rrelu(input: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Any:
    """Return torch.nn.functional.rrelu: slopes below zero are drawn in training."""
    drawn = ops.rand_like(input) if training else 0.5
    slope = drawn * (upper - lower) + lower
    return ops.where(input >= 0, input, input * slope)


class RReLU(nn.Cell):  # type: ignore[misc]
    """torch.nn.RReLU."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3) -> None:
        super().__init__()
        self.lower, self.upper = lower, upper

    def construct(self, x: Any) -> Any:
        """Return ``x``, below zero by a slope between both bounds."""
        return rrelu(x, self.lower, self.upper, self.training)


class Bilinear(nn.Cell):  # type: ignore[misc]
    """torch.nn.Bilinear: ``weight`` (out, in1, in2) and ``bias``, from torch's distribution."""

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True
    ) -> None:
        super().__init__()
        bound = 1 / math.sqrt(in1_features)

        def drawn(*shape: int) -> Any:
            made = ops.rand(*shape) * (2 * bound) - bound
            return ms.Parameter(made.astype(ms.float32))

        self.weight = drawn(out_features, in1_features, in2_features)
        self.bias = drawn(out_features) if bias else None

    def construct(self, x1: Any, x2: Any) -> Any:
        """Return ``x1 W x2 + b`` along the last axes."""
        return bilinear(x1, x2, self.weight, self.bias)


def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """Return torch.nn.functional.bilinear."""
    out, one, two = weight.shape
    first, second = input1.reshape((-1, one)), input2.reshape((-1, two))
    left = ops.matmul(first, weight.permute(1, 0, 2).reshape((one, out * two)))
    made = (left.reshape((-1, out, two)) * second.expand_dims(1)).sum(-1)
    made = made if bias is None else made + bias
    return made.reshape((*input1.shape[:-1], out))


class HingeEmbeddingLoss(nn.Cell):  # type: ignore[misc]
    """torch.nn.HingeEmbeddingLoss."""

    def __init__(self, margin: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__()
        self.settings = (margin, reduction)

    def construct(self, x: Any, target: Any) -> Any:
        """Return the loss of distances, near for 1 and far for -1."""
        return hinge_embedding_loss(x, target, *self.settings)


class MultiMarginLoss(nn.Cell):  # type: ignore[misc]
    """torch.nn.MultiMarginLoss."""

    def __init__(
        self, p: int = 1, margin: float = 1.0, weight: Any = None, *, reduction: str = "mean"
    ) -> None:
        super().__init__()
        self.settings = (p, margin, weight, reduction)

    def construct(self, x: Any, target: Any) -> Any:
        """Return how far other classes come into the margin."""
        return multi_margin_loss(x, target, *self.settings)


class ParameterDict(nn.Cell):  # type: ignore[misc]
    """torch.nn.ParameterDict: the keys are the names in the state."""

    def __init__(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__()
        self._path = ""
        self.update(parameters)

    def update_parameters_name(self, prefix: str = "", recurse: bool = True) -> None:
        """Take the name that the Cell around has for this dictionary."""
        super().update_parameters_name(prefix, recurse)
        self._path = prefix

    def update(self, parameters: Any) -> None:
        """Put Parameters of a mapping, or of pairs, under their keys."""
        pairs = parameters.items() if hasattr(parameters, "items") else parameters or ()
        for key, value in pairs:
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        param = value if isinstance(value, ms.Parameter) else ms.Parameter(value)
        self._params[key] = param
        param.name = self._path + key

    def __getitem__(self, key: str) -> Any:
        return self._params[key]

    def __delitem__(self, key: str) -> None:
        del self._params[key]

    def pop(self, key: str) -> Any:
        """Take a Parameter out."""
        return self._params.pop(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a Parameter, or ``default``."""
        return self._params.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._params

    def __len__(self) -> int:
        return len(self._params)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._params))

    def keys(self) -> Any:
        """Return the keys."""
        return list(self._params)

    def values(self) -> Any:
        """Return the Parameters."""
        return list(self._params.values())

    def items(self) -> Any:
        """Return pairs of key and Parameter."""
        return list(self._params.items())
