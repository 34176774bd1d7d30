"""torch's convolutions: a weight of one axis a dimension, and settings by torch's names."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import nn

from mpcore_port_runtime.convolving import convolve, convolve_back, each_axis, sides_of
from mpcore_port_runtime.padding import pad
from mpcore_port_runtime.refusal import only

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
]

_SIZES = ("kernel_size", "stride", "padding", "dilation")
_MODES = ("zeros", "reflect", "replicate", "circular")
_VOLUME = 3
_FLAT = 4  # axes of a weight of MindSpore's layers of one dimension


def _last_first(sides: Any) -> Any:
    """Return what is added (before, after) each axis as torch's ``pad`` has it."""
    flat: Any = ()
    for before, after in sides:  # the graph compiler reads no second `for` in brackets
        flat = (before, after, *flat)
    return flat


class _Settings:
    """What torch's layers are set to, over MindSpore's, so that each is one of its class.

    Source: ``_ConvNd`` in torch/nn/modules/conv.py, torch 2.13.0.
    """

    _axes = 2

    def _set(
        self,
        channels: tuple[Any, Any],
        sizes: tuple[Any, Any, Any, Any],
        groups: int,
        bias: bool,
        padding_mode: str,
    ) -> None:
        """Make MindSpore's layer, and put torch's settings in place of its own."""
        if padding_mode not in _MODES:
            msg = f"`padding_mode` must be one of {list(_MODES)}, got {padding_mode!r}"
            raise ValueError(msg)
        axes = self._axes
        given = {name: each_axis(value, axes) for name, value in zip(_SIZES, sizes, strict=True)}
        plain = {name: given[name] for name in ("kernel_size", "stride", "dilation")}
        if axes == 1:
            plain = {name: each[0] for name, each in plain.items()}
        elif axes == _VOLUME:
            plain["dilation"] = 1  # MindSpore's transposed layer takes no gaps in depth
        super().__init__(  # type: ignore[call-arg]  # nn.Cell's
            int(channels[0]),
            int(channels[1]),
            **plain,
            pad_mode="pad",
            group=int(groups),
            has_bias=bool(bias),
        )
        for name, value in given.items():
            setattr(self, name, value)
        self.groups, self.padding_mode = int(groups), padding_mode
        held: Any = self
        if axes == 1 and held.weight.ndim == _FLAT:
            held.weight = ms.Parameter(held.weight.value().squeeze(2), name="weight")


class _Convolution(_Settings):
    """A convolution with torch's arguments."""

    transposed = False

    def __init__(
        self,
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
    ) -> None:
        only("dtype", dtype, None, ms.float32)
        sizes = (kernel_size, stride, padding, dilation)
        self._set((in_channels, out_channels), sizes, groups, bias, padding_mode)
        self.output_padding = (0,) * self._axes

    def construct(self, x: Any) -> Any:
        """Return the convolution of ``x`` (N, C, ...), or of one without a batch."""
        held: Any = self
        return self._conv_forward(x, held.weight, held.bias)

    def _conv_forward(self, x: Any, weight: Any, bias: Any) -> Any:
        """Return the convolution with another weight, as layers made of torch's ask for it."""
        held: Any = self
        padding = held.padding
        if self.padding_mode != "zeros":
            dilation, kernel = held.dilation, held.kernel_size
            reach = [dilation[n] * (kernel[n] - 1) for n in range(self._axes)]
            x = pad(x, _last_first(sides_of(padding, held.stride, reach)), self.padding_mode)
            padding = 0
        return convolve(x, weight, bias, held.stride, padding, held.dilation, self.groups)


class Conv1d(_Convolution, nn.Conv1d):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.Conv1d."""

    _axes = 1


class Conv2d(_Convolution, nn.Conv2d):  # type: ignore[misc]
    """torch.nn.Conv2d."""


class Conv3d(_Convolution, nn.Conv3d):  # type: ignore[misc]
    """torch.nn.Conv3d."""

    _axes = 3


class _Transposed(_Settings):
    """A transposed convolution with torch's arguments."""

    transposed = True

    def __init__(
        self,
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
    ) -> None:
        only("dtype", dtype, None, ms.float32)
        only("padding_mode", padding_mode, "zeros")
        sizes = (kernel_size, stride, padding, dilation)
        self._set((in_channels, out_channels), sizes, groups, bias, padding_mode)
        self.output_padding = each_axis(output_padding, self._axes)

    def construct(self, x: Any, output_size: Any = None) -> Any:
        """Return the transposed convolution of ``x``, of a size where one is asked for."""
        held: Any = self
        extra = self.output_padding
        if output_size is not None:
            extra = self._output_padding(x, output_size)
        settings = held.stride, held.padding, extra, self.groups, held.dilation
        return convolve_back(x, held.weight, held.bias, *settings)

    def _output_padding(self, x: Any, output_size: Any) -> Any:
        """Return what is added to the end of each axis so that it has the size asked for.

        Source: ``_ConvTransposeNd._output_padding`` in torch/nn/modules/conv.py, torch 2.13.0.
        """
        held: Any = self
        sizes, axes = tuple(output_size), self._axes
        if len(sizes) in (x.ndim, x.ndim - 1):
            sizes = sizes[-axes:]
        if len(sizes) != axes:
            msg = f"`output_size` must have {axes} or {x.ndim} elements, got {len(sizes)}"
            raise ValueError(msg)
        extra = []
        for n in range(axes):
            reach = held.dilation[n] * (held.kernel_size[n] - 1) + 1
            least = (x.shape[n - axes] - 1) * held.stride[n] - 2 * held.padding[n] + reach
            if not least <= sizes[n] < least + held.stride[n]:
                most = least + held.stride[n] - 1
                msg = f"`output_size` must be from {least} to {most} on axis {n}, got {sizes[n]}"
                raise ValueError(msg)
            extra.append(sizes[n] - least)
        return tuple(extra)


class ConvTranspose1d(_Transposed, nn.Conv1dTranspose):  # type: ignore[misc]
    """torch.nn.ConvTranspose1d."""

    _axes = 1


class ConvTranspose2d(_Transposed, nn.Conv2dTranspose):  # type: ignore[misc]
    """torch.nn.ConvTranspose2d."""


class ConvTranspose3d(_Transposed, nn.Conv3dTranspose):  # type: ignore[misc]
    """torch.nn.ConvTranspose3d."""

    _axes = 3
