"""Attributes that MindSpore's Cells do not let set as torch's modules do: settings, buffers."""

from __future__ import annotations

from typing import Any

from mindspore import nn, ops

from mpcore.errors import BackendError
from mpcore_port_runtime import convolutions
from mpcore_port_runtime.convolving import each_axis
from mpcore_port_runtime.modules import renews_buffer

__all__ = ["set_attribute", "sides"]

_SIDES = 2  # of a picture; MindSpore pads each edge by itself


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """Run ``owner.name = value``; a layer that keeps operations made of it gets new ones.

    A buffer is registered anew, and stays in the state, or out of it, as it was.

    Source: the classes of mindspore/nn/layer, MindSpore 2.10.0.
    """
    if isinstance(owner, nn.Cell) and renews_buffer(owner, name, value):
        return
    for kind, names, renew in _RENEWED:
        if isinstance(owner, kind) and name in names:
            renew(owner, name, value)
            return
    native = isinstance(owner, nn.Cell) and type(owner).__module__.startswith("mindspore.")
    if native and not isinstance(owner, _READS) and hasattr(owner, name):
        kind = type(owner).__name__
        msg = f"{name} of {kind} is read when it is made alone: make another {kind}"
        raise BackendError(msg)
    setattr(owner, name, value)


def sides(padding: Any) -> Any:
    """Return what a convolution pads: of a size for each axis, one for each of its two edges."""
    if not isinstance(padding, tuple | list):
        return padding
    if len(padding) == 1:  # Conv1d of MindSpore takes one number
        return int(padding[0])
    return tuple(int(size) for size in padding for _ in range(_SIDES))


def _norm(layer: Any, name: str, value: Any) -> None:
    if value is None:
        msg = f"{name}=None: MindSpore has no cumulative average of statistics"
        raise BackendError(msg)
    if isinstance(layer, nn.SyncBatchNorm):
        msg = f"{name} of SyncBatchNorm is read when it is made alone"
        raise BackendError(msg)
    setattr(layer, name, float(value))  # the attribute is torch's momentum, the argument is not
    _renew_norm(layer, layer.momentum)


def _renew_norm(layer: Any, momentum: float) -> None:
    options = {"epsilon": layer.eps, "data_format": layer.format}
    layer.bn_train = ops.BatchNorm(is_training=True, momentum=momentum, **options)
    layer.bn_infer = ops.BatchNorm(is_training=False, **options)


def _tracked(layer: Any, name: str, value: Any) -> None:
    """Let the statistics of a layer stand still, or move: it takes those of batches as before."""
    if isinstance(layer, nn.SyncBatchNorm):
        msg = f"{name} of SyncBatchNorm is read when it is made alone"
        raise BackendError(msg)
    setattr(layer, name, bool(value))
    _renew_norm(layer, layer.momentum if value else 0.0)


def _norm_of_volumes(layer: Any, name: str, value: Any) -> None:
    _norm(layer.bn2d, name, value)


def _tracked_in_volumes(layer: Any, name: str, value: Any) -> None:
    _tracked(layer.bn2d, name, value)


def _layer_norm(layer: Any, name: str, value: Any) -> None:
    layer.epsilon = float(value)
    axes = layer.begin_norm_axis, layer.begin_params_axis
    layer.layer_norm = ops.LayerNorm(*axes, layer.epsilon)


def _dropout(layer: Any, name: str, value: Any) -> None:
    layer.dropout, layer.p = nn.Dropout(p=float(value)).dropout, float(value)


def _convolution(layer: Any, name: str, value: Any) -> None:
    pair = value if isinstance(value, tuple) else (value,) * _SIDES
    if name == "padding" and isinstance(value, tuple) and len(value) == _SIDES:
        pair = sides(value)
    setattr(layer, name, value if name == "padding" and isinstance(value, int) else pair)
    layer.conv2d = ops.Conv2D(
        layer.out_channels,
        layer.kernel_size,
        mode=1,
        pad_mode=layer.pad_mode,
        pad=layer.padding,
        stride=layer.stride,
        dilation=layer.dilation,
        group=layer.group,
        data_format=layer.data_format,
    )


def _read(layer: Any, name: str, value: Any) -> None:
    """Set what the runtime's convolutions read in each call, as torch's do."""
    setattr(layer, name, each_axis(value, len(layer.kernel_size)))


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
_READ = tuple(getattr(convolutions, name) for name in convolutions.__all__)
_RENEWED = (
    (_READ, ("kernel_size", "stride", "padding", "dilation", "output_padding"), _read),
    (_NORMS, ("momentum", "eps"), _norm),
    (_NORMS, ("track_running_stats",), _tracked),
    (nn.BatchNorm3d, ("track_running_stats",), _tracked_in_volumes),
    (nn.BatchNorm3d, ("momentum", "eps"), _norm_of_volumes),
    (nn.LayerNorm, ("eps",), _layer_norm),
    (nn.Dropout, ("p",), _dropout),
    (nn.Conv2d, ("stride", "padding", "dilation"), _convolution),
)
_READS = (nn.GroupNorm,)  # what reads its attributes in each call, as torch's do
