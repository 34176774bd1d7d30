"""What torch's layers say that they are set to, read from MindSpore's own layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore import nn

from mpcore_port_runtime import convolutions
from mpcore_port_runtime.modules import held

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["has_setting", "setting"]

_MISSING = object()
_BACK = (nn.Conv1dTranspose, nn.Conv2dTranspose, nn.Conv3dTranspose)
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_BACK)
_OURS = (
    *(convolutions.Conv1d, convolutions.Conv2d, convolutions.Conv3d),
    *(convolutions.ConvTranspose1d, convolutions.ConvTranspose2d, convolutions.ConvTranspose3d),
)
_MAX = (nn.MaxPool1d, nn.MaxPool2d)
_AVERAGE = (nn.AvgPool1d, nn.AvgPool2d)
_FLAT = (nn.MaxPool1d, nn.AvgPool1d)


def setting(owner: Any, name: str, *default: Any) -> Any:
    """Return ``owner.name`` as torch's layer has it; of anything else its own attribute.

    Source: the classes of torch/nn/modules/conv.py, pooling.py, batchnorm.py and
    normalization.py, torch 2.13.0, and of mindspore/nn/layer, MindSpore 2.10.0.
    """
    for kinds, read in _READERS:
        if isinstance(owner, kinds) and not isinstance(owner, _OURS) and name in read:
            return read[name](owner)
    return held(owner, name, *default)


def has_setting(owner: Any, name: str) -> bool:
    """Return whether torch's layer has the attribute ``name``."""
    return setting(owner, name, _MISSING) is not _MISSING


def _axes(layer: Any) -> int:
    kinds = ((nn.Conv1d, nn.Conv1dTranspose), (nn.Conv2d, nn.Conv2dTranspose))
    return next((n + 1 for n, kind in enumerate(kinds) if isinstance(layer, kind)), 3)


def _each(value: Any, axes: int) -> tuple[int, ...]:
    """Return a size for each axis; of layers of one dimension MindSpore has two."""
    return (value,) * axes if isinstance(value, int) else tuple(value)[-axes:]


def _sizes(name: str) -> Callable[[Any], Any]:
    return lambda layer: _each(getattr(layer, name, 0), _axes(layer))


def _conv_padding(layer: Any) -> Any:
    if layer.pad_mode == "same":
        return "same"
    axes, value = _axes(layer), layer.padding
    if isinstance(value, int) or len(value) == axes:
        return _each(value, axes)
    return tuple(value[::2])[-axes:]  # the two edges of each axis are the same in torch


def _of_pool(name: str) -> Callable[[Any], Any]:
    """Return what reads a size of a pool: a number where all axes have the same."""

    def read(pool: Any) -> Any:
        value = getattr(pool, name)
        if isinstance(pool, _FLAT):
            size = value if isinstance(value, int) else value[-1]
            return (size,) if isinstance(pool, nn.AvgPool1d) else size
        return value if isinstance(value, int) else tuple(value)[-2:]

    return read


def _inner(pool: Any) -> dict[str, Any]:
    """Return what the operation of a pool was made with; MindSpore keeps some of it there alone."""
    made = getattr(pool, "avg_pool", None) or getattr(pool, "max_pool", None)
    return dict(getattr(made, "attrs", {}))


def _pool_padding(pool: Any) -> Any:
    inner = _inner(pool)
    sides = inner["pad"][::2] if "pad" in inner else inner.get("pads", (0, 0))
    last = tuple(int(size) for size in sides)[-(1 if isinstance(pool, _FLAT) else 2) :]
    if isinstance(pool, nn.AvgPool1d):
        return last
    return last[0] if len(set(last)) == 1 else last


def _rate(norm: Any) -> float:
    return round(float(getattr(norm, "bn2d", norm).momentum), 12)  # MindSpore keeps 1 - momentum


_CONV: dict[str, Callable[[Any], Any]] = {
    "kernel_size": _sizes("kernel_size"),
    "stride": _sizes("stride"),
    "dilation": _sizes("dilation"),
    "output_padding": _sizes("output_padding"),
    "padding": _conv_padding,
    "groups": lambda layer: layer.group,
    "padding_mode": lambda _: "zeros",
    "transposed": lambda layer: isinstance(layer, _BACK),
}
_POOL: dict[str, Callable[[Any], Any]] = {
    "kernel_size": _of_pool("kernel_size"),
    "stride": _of_pool("stride"),
    "padding": _pool_padding,
    "ceil_mode": lambda pool: bool(_inner(pool).get("ceil_mode", False)),
}
_READERS: tuple[tuple[tuple[Any, ...], dict[str, Callable[[Any], Any]]], ...] = (
    (_CONVS, _CONV),
    (_MAX, _POOL | {"dilation": lambda _: 1, "return_indices": lambda _: False}),
    (
        _AVERAGE,
        _POOL
        | {
            "count_include_pad": lambda pool: bool(_inner(pool).get("count_include_pad", True)),
            "divisor_override": lambda _: None,
        },
    ),
    (
        (nn.BatchNorm3d,),
        {
            "num_features": lambda norm: norm.bn2d.num_features,
            "eps": lambda norm: norm.bn2d.eps,
            "momentum": _rate,
        },
    ),
    (
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
        {
            "momentum": _rate,
            "affine": lambda norm: getattr(norm, "bn2d", norm).gamma is not None,
            "track_running_stats": lambda norm: bool(vars(norm).get("track_running_stats", True)),
        },
    ),
    (
        (nn.LayerNorm,),
        {
            "eps": lambda norm: norm.epsilon,
            "elementwise_affine": lambda norm: getattr(norm, "gamma", None) is not None,
        },
    ),
)
