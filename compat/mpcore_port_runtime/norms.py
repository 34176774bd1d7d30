"""Batch normalisation without weights, or without kept statistics: MindSpore's layer has both."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import nn, ops

from mpcore.errors import BackendError

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"]


def _forget(cell: Any, *names: str) -> None:
    """Take Parameters out of a Cell; None stands for them."""
    for name in names:
        cell._params.pop(name, None)
        cell.__dict__[name] = None


class _Norm:
    """torch.nn's arguments and numbers, over MindSpore's layer, so that it is one of its class."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
    ) -> None:
        if momentum is None:
            msg = "`momentum` must be a number: MindSpore keeps no count of batches"
            raise BackendError(msg)
        super().__init__(num_features, eps=float(eps), momentum=1.0 - momentum, affine=affine)  # type: ignore[call-arg]  # nn.Cell's
        self.affine, self.track_running_stats = affine, track_running_stats
        self.rate = float(momentum)
        held = getattr(self, "bn2d", self)  # of BatchNorm3d
        _forget(held, *(() if affine else ("gamma", "beta")), *(() if bias else ("beta",)))
        _forget(held, *(() if track_running_stats else ("moving_mean", "moving_variance")))

    def construct(self, x: Any) -> Any:
        """Return ``x`` (N, C, ...) with each channel normalised, in float32.

        Source: ``batch_norm`` in aten/src/ATen/native/Normalization.cpp, torch 2.13.0.
        """
        cell: Any = getattr(self, "bn2d", self)
        wide, axes = x.astype(ms.float32), (0, *range(2, x.ndim))
        each = (1, x.shape[1]) + (1,) * (x.ndim - 2)
        if cell.training or not self.track_running_stats:
            mean = wide.mean(axes, True)
            centred = wide - mean
            var = (centred * centred).mean(axes, True)
            if self.track_running_stats:
                count = x.size // x.shape[1]
                self._move(cell.moving_mean, mean)
                self._move(cell.moving_variance, var * (count / max(count - 1, 1)))
        else:
            centred = wide - cell.moving_mean.reshape(each)
            var = cell.moving_variance.reshape(each)
        made = centred * ops.rsqrt(var + cell.eps)
        if cell.gamma is not None:
            made = made * cell.gamma.reshape(each)
        if cell.beta is not None:
            made = made + cell.beta.reshape(each)
        return made.astype(x.dtype)

    def _move(self, kept: Any, seen: Any) -> None:
        seen = ops.stop_gradient(seen).reshape(kept.shape)
        ops.assign(kept, (1.0 - self.rate) * kept + self.rate * seen)


class BatchNorm1d(_Norm, nn.BatchNorm1d):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.BatchNorm1d."""


class BatchNorm2d(_Norm, nn.BatchNorm2d):  # type: ignore[misc]
    """torch.nn.BatchNorm2d."""


class BatchNorm3d(_Norm, nn.BatchNorm3d):  # type: ignore[misc]
    """torch.nn.BatchNorm3d."""
