"""torch's functions of convolutions, of one to three dimensions."""

from __future__ import annotations

from typing import Any

from mindspore import ops
from mindspore.ops._primitive_cache import _get_cache_prim

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]

_FORMATS = ("", "NCHW", "NCHW", "NCDHW")  # by the number of dimensions; one runs as a flat picture
_VOLUME = 3


def each_axis(value: Any, axes: int) -> Any:
    """Return a size for each axis; one number is of all, a word stays."""
    if isinstance(value, str):
        return value
    if isinstance(value, (tuple, list)):  # the graph compiler reads no union
        sizes = tuple([int(size) for size in value])
        if len(sizes) == 1:
            return sizes * axes
        return sizes
    return (int(value),) * axes


def sides_of(padding: Any, stride: Any, reach: Any) -> Any:
    """Return what is added (before, after) each axis; "same" adds one more after an odd reach.

    Source: ``_ConvNd.__init__`` in torch/nn/modules/conv.py, torch 2.13.0.
    """
    if padding == "valid":
        return [(0, 0) for _ in reach]
    if padding == "same":
        if max(stride) > 1:
            msg = "`padding` must be numbers where the stride is not 1, got 'same'"
            raise ValueError(msg)
        return [(size // 2, size - size // 2) for size in reach]
    return [(size, size) for size in padding]


def convolve(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    """Return the convolution of ``x`` (N, C, ...), or of one without a batch."""
    axes = weight.ndim - 2
    if x.ndim == axes + 1:
        made = convolve(x.expand_dims(0), weight, bias, stride, padding, dilation, groups)
        return made.squeeze(0)
    step, apart = each_axis(stride, axes), each_axis(dilation, axes)
    reach = [apart[n] * (weight.shape[n + 2] - 1) for n in range(axes)]
    sides = sides_of(each_axis(padding, axes), step, reach)
    pads: Any = ()
    for before, after in sides:  # the graph compiler reads no second `for` in brackets
        pads = (*pads, before, after)
    if axes == _VOLUME:
        made = _volumes(x, weight, pads, step, apart, groups)
    elif axes == 1:
        flat = (0, 0, *pads), (1, *step), (1, *apart)
        made = _pictures(x.expand_dims(2), weight.expand_dims(2), *flat, groups).squeeze(2)
    else:
        made = _pictures(x, weight, pads, step, apart, groups)
    return _with_bias(made, bias, axes)


def _pictures(x: Any, weight: Any, pads: Any, step: Any, apart: Any, groups: int) -> Any:
    out, kernel = weight.shape[0], tuple(weight.shape[2:])
    run = _get_cache_prim(ops.Conv2D)(out, kernel, 1, "pad", pads, step, apart, groups)
    return run(x, weight)


def _volumes(x: Any, weight: Any, pads: Any, step: Any, apart: Any, groups: int) -> Any:
    """Return a convolution of volumes, group by group: MindSpore's kernel has none."""
    out, kernel = weight.shape[0] // groups, tuple(weight.shape[2:])
    run = _get_cache_prim(ops.Conv3D)(out, kernel, 1, "pad", pads, step, apart)
    if groups == 1:
        return run(x, weight)
    share = x.shape[1] // groups
    parts = []
    for n in range(groups):
        parts.append(run(x.narrow(1, n * share, share), weight.narrow(0, n * out, out)))
    return ops.concat(tuple(parts), 1)


def _with_bias(made: Any, bias: Any, axes: int) -> Any:
    if bias is None:
        return made
    if axes == 1:
        return _get_cache_prim(ops.BiasAdd)()(made.expand_dims(2), bias).squeeze(2)
    return _get_cache_prim(ops.BiasAdd)(_FORMATS[axes])(made, bias)


def convolve_back(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Any:
    """Return the transposed convolution of ``x`` (N, C, ...), or of one without a batch.

    Source: ``conv_transpose`` in aten/src/ATen/native/Convolution.cpp, torch 2.13.0.
    """
    axes = weight.ndim - 2
    if x.ndim == axes + 1:
        one = (stride, padding, output_padding, groups, dilation)
        return convolve_back(x.expand_dims(0), weight, bias, *one).squeeze(0)
    step, apart = each_axis(stride, axes), each_axis(dilation, axes)
    pads, more = each_axis(padding, axes), each_axis(output_padding, axes)
    for n in range(axes):
        if more[n] >= max(step[n], apart[n]):
            msg = f"`output_padding` must be below stride or dilation, got {more[n]}"
            raise ValueError(msg)
    cut = max([more[n] - step[n] for n in range(axes)]) >= 0  # the kernels add less than a stride
    none = (0,) * axes
    given = (none, none) if cut else (pads, more)
    if axes == _VOLUME:
        made = _volumes_back(x, weight, step, *given, apart, groups)
    elif axes == 1:
        flat = (1, *step), (0, *given[0]), (0, *given[1]), (1, *apart)
        made = _pictures_back(x.expand_dims(2), weight.expand_dims(2), *flat, groups).squeeze(2)
    else:
        made = _pictures_back(x, weight, step, *given, apart, groups)
    if cut:
        for n in range(axes):
            made = _cut(made, n + 2, pads[n], more[n])
    return _with_bias(made, bias, axes)


def _cut(x: Any, axis: int, padding: int, more: int) -> Any:
    """Take ``padding`` from both ends of an axis that gets ``more`` zeros behind it first."""
    size = x.shape[axis] + more
    if more:
        shape = (*x.shape[:axis], more, *x.shape[axis + 1 :])
        x = ops.concat((x, ops.zeros(shape, x.dtype)), axis)
    return x.narrow(axis, padding, size - 2 * padding)


def _pictures_back(
    x: Any, weight: Any, step: Any, pads: Any, more: Any, apart: Any, groups: int
) -> Any:
    kernel = tuple(weight.shape[2:])
    sizes = []
    for n in range(2):
        reach = apart[n] * (kernel[n] - 1) + 1
        sizes.append((x.shape[n + 2] - 1) * step[n] - 2 * pads[n] + reach + more[n])
    four = (pads[0], pads[0], pads[1], pads[1])
    settings = (x.shape[1], kernel, "pad", four, None, 1, step, apart, groups)
    run = _get_cache_prim(ops.Conv2DTranspose)(*settings)
    return run(x, weight, (x.shape[0], weight.shape[1] * groups, sizes[0], sizes[1]))


def _volumes_back(
    x: Any, weight: Any, step: Any, pads: Any, more: Any, apart: Any, groups: int
) -> Any:
    six = (pads[0], pads[0], pads[1], pads[1], pads[2], pads[2])
    out = weight.shape[1] * groups
    for n in range(_VOLUME):  # MindSpore's kernel takes no gaps in depth
        weight = _spread(weight, n + 2, apart[n])
    apart = 1
    settings = (x.shape[1], out, tuple(weight.shape[2:]), 1, "pad", six, step, apart, groups, more)
    return _get_cache_prim(ops.Conv3DTranspose)(*settings)(x, weight)


def _spread(weight: Any, axis: int, apart: int) -> Any:
    """Return a kernel with zeros between its elements along an axis, as a dilation reads it."""
    size = weight.shape[axis]
    if apart == 1 or size == 1:
        return weight
    before, after = weight.shape[:axis], weight.shape[axis + 1 :]
    zeros = ops.zeros((*before, size, apart - 1, *after), weight.dtype)
    made = ops.concat((weight.expand_dims(axis + 1), zeros), axis + 1)
    return made.reshape((*before, size * apart, *after)).narrow(axis, 0, (size - 1) * apart + 1)


def conv1d(
    input: Any,  # torch's names, here and below
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Return torch.nn.functional.conv1d."""
    return convolve(input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Return torch.nn.functional.conv2d."""
    return convolve(input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Return torch.nn.functional.conv3d."""
    return convolve(input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Return torch.nn.functional.conv_transpose1d."""
    settings = stride, padding, output_padding, groups, dilation
    return convolve_back(input, weight, bias, *settings)


def conv_transpose2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Return torch.nn.functional.conv_transpose2d."""
    settings = stride, padding, output_padding, groups, dilation
    return convolve_back(input, weight, bias, *settings)


def conv_transpose3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Return torch.nn.functional.conv_transpose3d."""
    settings = stride, padding, output_padding, groups, dilation
    return convolve_back(input, weight, bias, *settings)
