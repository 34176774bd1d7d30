"""Normalisation of each instance by itself: MindSpore's layer has no kernel on CPU."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import nn, ops

__all__ = ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "instance_norm"]


def instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Any:
    """Return torch.nn.functional.instance_norm of (N, C, ...), in float32.

    Source: ``instance_norm`` in aten/src/ATen/native/Normalization.cpp, torch 2.13.0: statistics
    are means over the instances, the variance that is kept is divided by one less.
    """
    wide = x.astype(ms.float32)
    each = (1, x.shape[1]) + (1,) * (x.ndim - 2)
    if use_input_stats:
        axes = tuple(range(2, x.ndim))
        mean = wide.mean(axes, True)
        centred = wide - mean
        var = (centred * centred).mean(axes, True)
        count = x.size // (x.shape[0] * x.shape[1])
        if running_mean is not None:
            _move(running_mean, mean, momentum)
        if running_var is not None:
            _move(running_var, var * (count / max(count - 1, 1)), momentum)
    else:
        centred, var = wide - running_mean.reshape(each), running_var.reshape(each)
    made = centred * ops.rsqrt(var + eps)
    if weight is not None:
        made = made * weight.reshape(each)
    if bias is not None:
        made = made + bias.reshape(each)
    return made.astype(x.dtype)


def _move(kept: Any, seen: Any, momentum: float) -> None:
    seen = ops.stop_gradient(seen).reshape(seen.shape[:2]).mean(0)
    ops.assign(kept, (1 - momentum) * kept + momentum * seen)


class _InstanceNorm(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    _dims = 2

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        one, zero = ops.ones((num_features,)), ops.zeros((num_features,))
        self.gamma = ms.Parameter(one) if affine else None
        self.beta = ms.Parameter(zero) if affine else None
        tracked = track_running_stats
        self.moving_mean = ms.Parameter(zero.copy(), requires_grad=False) if tracked else None
        self.moving_variance = ms.Parameter(one.copy(), requires_grad=False) if tracked else None

    def construct(self, x: Any) -> Any:
        """Return ``x`` with each channel of each instance normalised; a batch may be left out."""
        kept = (self.moving_mean, self.moving_variance, self.gamma, self.beta)
        by_input = self.training or not self.track_running_stats
        batch = x if x.ndim == self._dims + 2 else x.expand_dims(0)
        made = instance_norm(batch, *kept, by_input, self.momentum, self.eps)
        return made if x.ndim == self._dims + 2 else made.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """torch.nn.InstanceNorm1d."""

    _dims = 1


class InstanceNorm2d(_InstanceNorm):
    """torch.nn.InstanceNorm2d."""


class InstanceNorm3d(_InstanceNorm):
    """torch.nn.InstanceNorm3d."""

    _dims = 3
