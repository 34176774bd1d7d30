"""MindSpore's layers by torch's arguments, for layers that are handed on by their name.

``norm_layer=port.torch_nn.LayerNorm`` is called somewhere else, as torch's class would be. Each
function has torch's signature (torch 2.13.0) and returns MindSpore's own layer, or the runtime's;
those that do something else in training start in it, as torch's do.
"""

from __future__ import annotations

from typing import Any

from mindspore import nn

from mpcore_port_runtime import activations, convolutions, layers, norms, pools
from mpcore_port_runtime.functional import as_tuple
from mpcore_port_runtime.makers import Maker
from mpcore_port_runtime.refusal import only
from mpcore_port_runtime.torch_nn_others import (
    GRU,
    LSTM,
    RNN,
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    Embedding,
    Identity,
    L1Loss,
    MSELoss,
    NLLLoss,
    Sigmoid,
    SmoothL1Loss,
    Softplus,
    Tanh,
)

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "SELU",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout2d",
    "Embedding",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "L1Loss",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MSELoss",
    "MaxPool2d",
    "Mish",
    "NLLLoss",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Tanh",
]


def _several(value: Any, axes: int) -> Any:
    """Return sizes as MindSpore's layers take them: tuples, of one axis a number."""
    if isinstance(value, int):
        return value
    return value[0] if axes == 1 else tuple(value)


# --- normalisation --------------------------------------------------------------------------------


def _batch_norm(
    make: Any,
    other: Any,
    num_features: int,
    eps: float,
    momentum: float | None,
    affine: bool,
    track_running_stats: bool,
) -> Any:
    if momentum is None:
        msg = "`momentum` must be a number: an average over all batches has no equal in MindSpore"
        raise NotImplementedError(msg)
    if not affine or not track_running_stats:
        return other(num_features, eps, momentum, affine, track_running_stats).set_train()
    return make(num_features, float(eps), momentum=1.0 - momentum).set_train()


def BatchNorm1d(  # noqa: N802  # torch's names, here and below
    num_features: int,
    eps: float = 1e-5,
    momentum: float | None = 0.1,
    affine: bool = True,
    track_running_stats: bool = True,
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.BatchNorm1d."""
    makers = nn.BatchNorm1d, norms.BatchNorm1d
    return _batch_norm(*makers, num_features, eps, momentum, affine, track_running_stats)


def BatchNorm2d(  # noqa: N802
    num_features: int,
    eps: float = 1e-5,
    momentum: float | None = 0.1,
    affine: bool = True,
    track_running_stats: bool = True,
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.BatchNorm2d."""
    makers = nn.BatchNorm2d, norms.BatchNorm2d
    return _batch_norm(*makers, num_features, eps, momentum, affine, track_running_stats)


def BatchNorm3d(  # noqa: N802
    num_features: int,
    eps: float = 1e-5,
    momentum: float | None = 0.1,
    affine: bool = True,
    track_running_stats: bool = True,
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.BatchNorm3d."""
    makers = nn.BatchNorm3d, norms.BatchNorm3d
    return _batch_norm(*makers, num_features, eps, momentum, affine, track_running_stats)


def LayerNorm(  # noqa: N802
    normalized_shape: Any,
    eps: float = 1e-5,
    elementwise_affine: bool = True,
    bias: bool = True,
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.LayerNorm."""
    shape = as_tuple(normalized_shape)
    if elementwise_affine and bias and len(shape) == 1:
        return nn.LayerNorm(shape, epsilon=float(eps))
    return layers.LayerNorm(shape, eps, elementwise_affine, bias)


def GroupNorm(  # noqa: N802
    num_groups: int,
    num_channels: int,
    eps: float = 1e-5,
    affine: bool = True,
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.GroupNorm."""
    if not affine:
        return norms.GroupNorm(num_groups, num_channels, eps, affine)
    return nn.GroupNorm(num_groups, num_channels, float(eps))


# --- activations ----------------------------------------------------------------------------------


def ReLU(inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.ReLU."""
    return nn.ReLU()


def ReLU6(inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.ReLU6."""
    return activations.ReLU6()


def SiLU(inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.SiLU."""
    return nn.SiLU()


def Mish(inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.Mish."""
    return activations.Mish()


def SELU(inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.SELU."""
    return layers.SELU()


def Hardswish(inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.Hardswish."""
    return activations.Hardswish()


def Hardsigmoid(inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.Hardsigmoid."""
    return nn.HSigmoid()


def Hardtanh(min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.Hardtanh."""
    return activations.Hardtanh(min_val, max_val)


def GELU(approximate: str = "none") -> Any:  # noqa: N802
    """Return torch.nn.GELU."""
    only("approximate", approximate, "none", "tanh")
    return nn.GELU(approximate=approximate == "tanh")


def LeakyReLU(negative_slope: float = 0.01, inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.LeakyReLU."""
    return activations.LeakyReLU(negative_slope)


def ELU(alpha: float = 1.0, inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.ELU."""
    only("alpha", alpha, 1.0)
    return nn.ELU()


def CELU(alpha: float = 1.0, inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.CELU."""
    return nn.CELU(float(alpha))


def Softmax(dim: int | None = None) -> Any:  # noqa: N802
    """Return torch.nn.Softmax."""
    return layers.Softmax() if dim is None else nn.Softmax(axis=dim)


def Dropout(p: float = 0.5, inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.Dropout; other random numbers."""
    return nn.Dropout(p=float(p)).set_train()


def Dropout2d(p: float = 0.5, inplace: bool = False) -> Any:  # noqa: N802
    """Return torch.nn.Dropout2d; other random numbers."""
    return layers.Dropout2d(p=float(p)).set_train()


# --- layers with weights, and pools ---------------------------------------------------------------


def Linear(  # noqa: N802
    in_features: int,
    out_features: int,
    bias: bool = True,
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.Linear."""
    only("dtype", dtype, None)
    return nn.Dense(in_features, out_features, has_bias=bias)


def _sides(padding: Any, stride: Any, axes: int) -> dict[str, Any]:
    """Return MindSpore's ``pad_mode`` and ``padding``; two sides for each axis of several."""
    if padding == "valid":
        return {"pad_mode": "pad", "padding": 0}
    if padding == "same":
        only("stride", stride, 1, (1,) * axes)
        return {"pad_mode": "same"}
    if isinstance(padding, int):
        return {"pad_mode": "pad", "padding": padding}
    each = tuple(side for side in padding for _ in range(2))
    return {"pad_mode": "pad", "padding": each[0] if axes == 1 else each}


def _conv(
    make: Any,
    axes: int,
    sizes: tuple[int, int, Any],
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    bias: bool,
) -> Any:
    into, out, kernel = sizes
    step = _several(stride, axes)
    return make(
        into,
        out,
        _several(kernel, axes),
        stride=step,
        dilation=_several(dilation, axes),
        group=groups,
        has_bias=bias,
        **_sides(padding, step, axes),
    )


def Conv1d(  # noqa: N802
    in_channels: int,
    out_channels: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    bias: bool = True,
    padding_mode: str = "zeros",
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.Conv1d."""
    sizes = in_channels, out_channels, kernel_size
    settings = stride, padding, dilation, groups, bias, padding_mode, device, dtype
    return convolutions.Conv1d(*sizes, *settings)


def Conv2d(  # noqa: N802
    in_channels: int,
    out_channels: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    bias: bool = True,
    padding_mode: str = "zeros",
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.Conv2d."""
    only("dtype", dtype, None)
    sizes = in_channels, out_channels, kernel_size
    if padding_mode != "zeros":
        settings = stride, padding, dilation, groups, bias, padding_mode
        return convolutions.Conv2d(*sizes, *settings)
    return _conv(nn.Conv2d, 2, sizes, stride, padding, dilation, groups, bias)


def Conv3d(  # noqa: N802
    in_channels: int,
    out_channels: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    bias: bool = True,
    padding_mode: str = "zeros",
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.Conv3d."""
    only("dtype", dtype, None)
    sizes = in_channels, out_channels, kernel_size
    if padding_mode != "zeros":
        settings = stride, padding, dilation, groups, bias, padding_mode
        return convolutions.Conv3d(*sizes, *settings)
    return _conv(nn.Conv3d, 3, sizes, stride, padding, dilation, groups, bias)


def ConvTranspose2d(  # noqa: N802
    in_channels: int,
    out_channels: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    bias: bool = True,
    dilation: Any = 1,
    padding_mode: str = "zeros",
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """Return torch.nn.ConvTranspose2d."""
    only("padding_mode", padding_mode, "zeros")
    only("dtype", dtype, None)
    sizes = in_channels, out_channels, kernel_size
    if output_padding not in (0, (0, 0)):
        settings = stride, padding, output_padding, groups, bias, dilation
        return convolutions.ConvTranspose2d(*sizes, *settings)
    return _conv(nn.Conv2dTranspose, 2, sizes, stride, padding, dilation, groups, bias)


def MaxPool2d(  # noqa: N802
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    return_indices: bool = False,
    ceil_mode: bool = False,
) -> Any:
    """Return torch.nn.MaxPool2d."""
    if return_indices or dilation not in (1, (1, 1)):
        settings = (padding, dilation, return_indices, ceil_mode)
        return pools.MaxPool2d(kernel_size, stride, *settings)
    padded = {"pad_mode": "pad"} if padding not in (0, (0, 0)) or ceil_mode else {}
    step = kernel_size if stride is None else stride
    return nn.MaxPool2d(kernel_size, stride=step, padding=padding, ceil_mode=ceil_mode, **padded)


def AvgPool2d(  # noqa: N802
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Any:
    """Return torch.nn.AvgPool2d."""
    if ceil_mode or divisor_override is not None:
        settings = (padding, ceil_mode, count_include_pad, divisor_override)
        return pools.AvgPool2d(kernel_size, stride, *settings)
    padded = {"pad_mode": "pad"} if padding not in (0, (0, 0)) else {}
    step = kernel_size if stride is None else stride
    more = {"padding": padding, "count_include_pad": count_include_pad}
    return nn.AvgPool2d(kernel_size, step, **more, **padded)


for _name in __all__:
    globals()[_name] = Maker(globals()[_name])
