"""Layers of torchvision that scripts take by themselves, and what reads parts of a network.

Source: torchvision 0.28.0 ``ops/misc.py``, ``ops/stochastic_depth.py``, ``models/_utils.py``;
compared with what these gave.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from mindspore import nn, ops

from mpcore_port_runtime import torch_nn
from mpcore_port_runtime.layers import ModuleDict
from mpcore_port_runtime.modules import named_children

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "MLP",
    "Conv2dNormActivation",
    "Conv3dNormActivation",
    "ConvNormActivation",
    "FrozenBatchNorm2d",
    "IntermediateLayerGetter",
    "Permute",
    "SqueezeExcitation",
    "StochasticDepth",
    "stochastic_depth",
]


class FrozenBatchNorm2d(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Batch normalisation whose numbers never change."""

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", ops.ones(num_features))
        self.register_buffer("bias", ops.zeros(num_features))
        self.register_buffer("running_mean", ops.zeros(num_features))
        self.register_buffer("running_var", ops.ones(num_features))
        self.set_train()

    def construct(self, x: Any) -> Any:
        """Return each channel, scaled and moved."""
        held = (self.weight, self.bias, self.running_mean, self.running_var)
        weight, bias, mean, var = (one.reshape(1, -1, 1, 1) for one in held)
        scale = weight * ops.rsqrt(var + self.eps)
        return x * scale + (bias - mean * scale)


def _each(value: Any, axes: int) -> tuple[int, ...]:
    return (value,) * axes if isinstance(value, int) else tuple(value)


class ConvNormActivation(nn.SequentialCell):  # type: ignore[misc]
    """A convolution, a norm and an activation."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = 3,
        stride: Any = 1,
        padding: Any = None,
        groups: int = 1,
        norm_layer: Callable[..., Any] | None = torch_nn.BatchNorm2d,
        activation_layer: Callable[..., Any] | None = torch_nn.ReLU,
        dilation: Any = 1,
        inplace: bool | None = True,
        bias: bool | None = None,
        conv_layer: Callable[..., Any] = torch_nn.Conv2d,
    ) -> None:
        if padding is None and isinstance(kernel_size, int) and isinstance(dilation, int):
            padding = (kernel_size - 1) // 2 * dilation
        elif padding is None:
            axes = len(kernel_size if not isinstance(kernel_size, int) else dilation)
            kernel_size, dilation = _each(kernel_size, axes), _each(dilation, axes)
            pairs = zip(kernel_size, dilation, strict=True)
            padding = tuple((size - 1) // 2 * apart for size, apart in pairs)
        bias = norm_layer is None if bias is None else bias
        words = {"dilation": dilation, "groups": groups, "bias": bias}
        cells = [conv_layer(in_channels, out_channels, kernel_size, stride, padding, **words)]
        if norm_layer is not None:
            cells.append(norm_layer(out_channels))
        if activation_layer is not None:
            cells.append(activation_layer(**({} if inplace is None else {"inplace": inplace})))
        super().__init__(*cells)
        self.out_channels = out_channels
        self.set_train()


class Conv2dNormActivation(ConvNormActivation):
    """The same of pictures."""


class Conv3dNormActivation(ConvNormActivation):
    """The same of volumes."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = 3,
        stride: Any = 1,
        padding: Any = None,
        groups: int = 1,
        norm_layer: Callable[..., Any] | None = torch_nn.BatchNorm3d,
        activation_layer: Callable[..., Any] | None = torch_nn.ReLU,
        dilation: Any = 1,
        inplace: bool | None = True,
        bias: bool | None = None,
    ) -> None:
        settings = (kernel_size, stride, padding, groups, norm_layer, activation_layer, dilation)
        super().__init__(in_channels, out_channels, *settings, inplace, bias, torch_nn.Conv3d)


class SqueezeExcitation(nn.Cell):  # type: ignore[misc]
    """Channels, each scaled by what a small network makes of all their means."""

    def __init__(
        self,
        input_channels: int,
        squeeze_channels: int,
        activation: Callable[..., Any] = torch_nn.ReLU,
        scale_activation: Callable[..., Any] = torch_nn.Sigmoid,
    ) -> None:
        super().__init__()
        self.fc1 = torch_nn.Conv2d(input_channels, squeeze_channels, 1)
        self.fc2 = torch_nn.Conv2d(squeeze_channels, input_channels, 1)
        self.activation = activation()
        self.scale_activation = scale_activation()
        self.set_train()

    def construct(self, x: Any) -> Any:
        """Return the scaled channels."""
        means = x.mean((2, 3), keep_dims=True)
        return self.scale_activation(self.fc2(self.activation(self.fc1(means)))) * x


class MLP(nn.SequentialCell):  # type: ignore[misc]
    """Linear layers with norms, activations and dropout between them."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: Sequence[int],
        norm_layer: Callable[..., Any] | None = None,
        activation_layer: Callable[..., Any] = torch_nn.ReLU,
        inplace: bool | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        words = {} if inplace is None else {"inplace": inplace}
        cells: list[Any] = []
        for width in hidden_channels[:-1]:
            cells.append(torch_nn.Linear(in_channels, width, bias=bias))
            if norm_layer is not None:
                cells.append(norm_layer(width))
            cells += [activation_layer(**words), torch_nn.Dropout(dropout, **words)]
            in_channels = width
        cells.append(torch_nn.Linear(in_channels, hidden_channels[-1], bias=bias))
        cells.append(torch_nn.Dropout(dropout, **words))
        super().__init__(*cells)
        self.set_train()


class Permute(nn.Cell):  # type: ignore[misc]
    """A tensor with its axes in another order."""

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.dims = tuple(dims)

    def construct(self, x: Any) -> Any:
        """Return the tensor."""
        return ops.permute(x, self.dims)


def stochastic_depth(input: Any, p: float, mode: str, training: bool = True) -> Any:
    """Return the tensor with all of it, or some rows, set to zero; the rest is larger for it."""
    if not 0.0 <= p <= 1.0:
        msg = f"`p` must be in [0, 1], got {p}"
        raise ValueError(msg)
    if mode not in ("batch", "row"):
        msg = f"`mode` must be 'batch' or 'row', got {mode!r}"
        raise ValueError(msg)
    if not training or p == 0.0:
        return input
    stays = 1.0 - p
    shape = ((input.shape[0] if mode == "row" else 1),) + (1,) * (input.ndim - 1)
    noise = (ops.rand(shape) < stays).astype(input.dtype)
    return input * (noise / stays if stays > 0.0 else noise)


class StochasticDepth(nn.Cell):  # type: ignore[misc]
    """stochastic_depth as a layer."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode
        self.set_train()

    def construct(self, x: Any) -> Any:
        """Drop in training."""
        return stochastic_depth(x, self.p, self.mode, self.training)


class IntermediateLayerGetter(ModuleDict):
    """The layers of a network up to the last that is asked for; gives what those return."""

    def __init__(self, model: Any, return_layers: dict[str, str]) -> None:
        children = list(named_children(model))
        wanted = {str(name) for name in return_layers}
        if not wanted <= {name for name, _ in children}:
            msg = "return_layers are not present in model"
            raise ValueError(msg)
        held: OrderedDict[str, Any] = OrderedDict()
        for name, cell in children:
            if not wanted:
                break
            held[name] = cell
            wanted.discard(name)
        super().__init__(held)
        self.return_layers = return_layers
        self.set_train()

    def construct(self, x: Any) -> Any:
        """Return a dictionary of what was asked for, by its new names."""
        out: OrderedDict[str, Any] = OrderedDict()
        for name, cell in self.items():
            x = cell(x)
            if name in self.return_layers:
                out[self.return_layers[name]] = x
        return out
