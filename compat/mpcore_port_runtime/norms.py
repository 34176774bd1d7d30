"""Normalisation without weights, or without kept statistics: MindSpore's layers have both."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import nn, ops

from mpcore.errors import BackendError
from mpcore_port_runtime.in_place import put
from mpcore_port_runtime.modules import renews_buffer
from mpcore_port_runtime.recorded import resume

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "batch_norm"]


def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Return torch.nn.functional.batch_norm, which moves the running statistics in training.

    Source: ``native_batch_norm`` in torch/_refs/__init__.py and its decomposition, torch 2.13.0.
    """
    x = input.astype(ms.float32) if input.dtype in (ms.float16, ms.bfloat16) else input
    if training:
        mean, apart, var = _moments(x)
        count = x.size // x.shape[1]
        if running_mean is not None:
            _move(running_mean, mean, momentum)
            _move(running_var, var * (count / (count - 1)), momentum)
    else:
        each = (1, -1) + (1,) * (x.ndim - 2)
        apart, var = x - running_mean.reshape(each), running_var.reshape(each)
    return _scaled(apart, var, eps, weight, bias).astype(input.dtype)


def _moments(x: Any) -> tuple[Any, Any, Any]:
    """Return the mean of each channel, what is apart from it, and the mean of its square."""
    axes = (0, *range(2, x.ndim))
    mean = x.mean(axes, True)
    apart = x - mean
    return mean, apart, (apart * apart).mean(axes, True)


def _scaled(apart: Any, var: Any, eps: float, weight: Any, bias: Any) -> Any:
    """Return channels over their deviation, times a weight and with a bias, where there are any."""
    each = (1, -1) + (1,) * (apart.ndim - 2)
    made = apart * ops.rsqrt(var + eps)
    made = made if weight is None else made * weight.reshape(each)
    return made if bias is None else made + bias.reshape(each)


def _move(running: Any, to: Any, momentum: float) -> None:
    with ms._no_grad():
        seen = ops.stop_gradient(to).reshape(running.shape)
        put(running, running * (1 - momentum) + seen * momentum)
    resume()


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
        device: Any = None,
        dtype: Any = None,
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

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Keep a tensor; one of the name of torch's statistics takes their place."""
        if not renews_buffer(self, name, tensor):
            super().register_buffer(name, tensor, persistent=persistent)  # type: ignore[misc]

    def construct(self, x: Any) -> Any:
        """Return ``x`` (N, C, ...) with each channel normalised, in float32.

        Source: ``batch_norm`` in aten/src/ATen/native/Normalization.cpp, torch 2.13.0.
        """
        cell: Any = getattr(self, "bn2d", self)
        wide = x.astype(ms.float32)
        if cell.training or not self.track_running_stats:
            mean, apart, var = _moments(wide)
            if self.track_running_stats:
                count = x.size // x.shape[1]
                self._move(cell.moving_mean, mean)
                self._move(cell.moving_variance, var * (count / max(count - 1, 1)))
        else:
            each = (1, x.shape[1]) + (1,) * (x.ndim - 2)
            apart = wide - cell.moving_mean.reshape(each)
            var = cell.moving_variance.reshape(each)
        return _scaled(apart, var, cell.eps, cell.gamma, cell.beta).astype(x.dtype)

    def _move(self, kept: Any, seen: Any) -> None:
        seen = ops.stop_gradient(seen).reshape(kept.shape)
        ops.assign(kept, (1.0 - self.rate) * kept + self.rate * seen)


class BatchNorm1d(_Norm, nn.BatchNorm1d):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.BatchNorm1d."""


class BatchNorm2d(_Norm, nn.BatchNorm2d):  # type: ignore[misc]
    """torch.nn.BatchNorm2d."""


class BatchNorm3d(_Norm, nn.BatchNorm3d):  # type: ignore[misc]
    """torch.nn.BatchNorm3d."""


_INSIDE = ("gamma", "beta", "moving_mean", "moving_variance")


def _of_inner(name: str) -> property:
    """Return what reads a Parameter of the norm that MindSpore's BatchNorm3d holds."""
    return property(lambda norm: getattr(norm.bn2d, name))


def _set_inside(norm: Any, name: str, value: Any) -> None:
    """Set an attribute of a BatchNorm3d, one of its Parameters where it is."""
    nn.Cell.__setattr__(norm.bn2d if name in _INSIDE else norm, name, value)


def _apply_to_it(norm: Any, fn: Any) -> Any:
    """Call a function on a BatchNorm3d, not on the norm that it holds: torch's holds none."""
    fn(norm)
    return norm


for _name in _INSIDE:  # torch's norms of volumes have them as all others
    setattr(nn.BatchNorm3d, _name, _of_inner(_name))
nn.BatchNorm3d.__setattr__ = _set_inside
nn.BatchNorm3d.apply = _apply_to_it


class GroupNorm(nn.GroupNorm):  # type: ignore[misc]
    """torch.nn.GroupNorm, without weights too."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if affine:
            super().__init__(num_groups, num_channels, float(eps))
        else:
            nn.Cell.__init__(self)
            self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.affine = affine

    def construct(self, x: Any) -> Any:
        """Return ``x`` with each group of channels as wide as the others."""
        if self.affine:
            return super().construct(x)
        return ops.group_norm(x, self.num_groups, None, None, float(self.eps))
