"""MobileNetV2 and DenseNet.

Papers: Sandler 2018 (arXiv 1801.04381), Huang 2016 (1608.06993). Names of parameters and
arguments: torchvision 0.28 ``models/mobilenetv2.py``, ``models/densenet.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from mindspore import nn, ops
from mindspore.common.initializer import HeNormal, Normal

from mpcore_port_runtime import torch_nn
from mpcore_port_runtime.modules import fill
from mpcore_port_runtime.networks import weights
from mpcore_port_runtime.networks.weights import maker

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DenseNet",
    "MobileNetV2",
    "densenet121",
    "densenet161",
    "densenet169",
    "densenet201",
    "mobilenet_v2",
]

_STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)
"""Of MobileNetV2: expansion, channels, how often, stride of the first (table 2 of the paper)."""


def _rounded(channels: float, by: int) -> int:
    """Return a multiple of ``by`` near a number of channels, at least 90 % of it."""
    near = max(by, int(channels + by / 2) // by * by)
    return near + by if near < 0.9 * channels else near


def _normed(inner: int, outer: int, size: int, stride: int, groups: int, norm: Any) -> Any:
    conv = torch_nn.Conv2d(inner, outer, size, stride, size // 2, groups=groups, bias=False)
    return nn.SequentialCell(conv, norm(outer), nn.ReLU6())


class _Inverted(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    def __init__(self, inner: int, outer: int, stride: int, expansion: int, norm: Any) -> None:
        super().__init__()
        width = round(inner * expansion)
        widened = [] if expansion == 1 else [_normed(inner, width, 1, 1, 1, norm)]
        narrow = torch_nn.Conv2d(width, outer, 1, bias=False)
        depth = _normed(width, width, 3, stride, width, norm)
        self.conv = nn.SequentialCell(*widened, depth, narrow, norm(outer))
        self.use_res_connect = stride == 1 and inner == outer

    def construct(self, x: Any) -> Any:
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNetV2(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Inverted residuals between two convolutions, and a linear layer.

    Args:
        num_classes: how many numbers come out.
        width_mult: a factor on the channels.
        inverted_residual_setting: rows of expansion, channels, how often, stride.
        round_nearest: what channels are multiples of.
        norm_layer: what makes a norm of a number of channels; BatchNorm2d.
        dropout: the probability in front of the linear layer.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        width_mult: float = 1.0,
        inverted_residual_setting: Sequence[Sequence[int]] | None = None,
        round_nearest: int = 8,
        norm_layer: Any = None,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        norm = norm_layer or torch_nn.BatchNorm2d
        inner = _rounded(32 * width_mult, round_nearest)
        self.last_channel = _rounded(1280 * max(1.0, width_mult), round_nearest)
        layers = [_normed(3, inner, 3, 2, 1, norm)]
        for expansion, channels, count, stride in inverted_residual_setting or _STAGES:
            outer = _rounded(channels * width_mult, round_nearest)
            for place in range(count):
                layers.append(_Inverted(inner, outer, 1 if place else stride, expansion, norm))
                inner = outer
        layers.append(_normed(inner, self.last_channel, 1, 1, 1, norm))
        self.features = nn.SequentialCell(*layers)
        linear = torch_nn.Linear(self.last_channel, num_classes)
        self.classifier = nn.SequentialCell(torch_nn.Dropout(dropout), linear)
        fill(linear.weight, Normal(0.01))
        fill(linear.bias, "zeros")
        for _, cell in self.cells_and_names():
            if isinstance(cell, nn.Conv2d):
                fill(cell.weight, HeNormal(mode="fan_out"))
        self.set_train()

    def construct(self, x: Any) -> Any:
        """Return a number for each class."""
        return self.classifier(ops.mean(self.features(x), (2, 3)))


class _Layer(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """A bottleneck of DenseNet: what it gives is added to what came in."""

    def __init__(self, inner: int, growth: int, factor: int, drop: float) -> None:
        super().__init__()
        self.norm1, self.relu1 = torch_nn.BatchNorm2d(inner), nn.ReLU()
        self.conv1 = torch_nn.Conv2d(inner, factor * growth, 1, bias=False)
        self.norm2, self.relu2 = torch_nn.BatchNorm2d(factor * growth), nn.ReLU()
        self.conv2 = torch_nn.Conv2d(factor * growth, growth, 3, padding=1, bias=False)
        self.drop = torch_nn.Dropout(drop) if drop else None

    def construct(self, x: Any) -> Any:
        made = self.conv2(self.relu2(self.norm2(self.conv1(self.relu1(self.norm1(x))))))
        return made if self.drop is None else self.drop(made)


class _Dense(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    def __init__(self, count: int, inner: int, growth: int, factor: int, drop: float) -> None:
        super().__init__()
        self.names = [f"denselayer{place + 1}" for place in range(count)]
        for place, name in enumerate(self.names):
            setattr(self, name, _Layer(inner + place * growth, growth, factor, drop))

    def construct(self, x: Any) -> Any:
        for name in self.names:
            x = ops.cat((x, getattr(self, name)(x)), 1)
        return x


class DenseNet(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Dense blocks with transitions between them, and a linear layer.

    Args:
        growth_rate: channels that each layer adds.
        block_config: how many layers each block has.
        num_init_features: channels of the stem.
        bn_size: a bottleneck's channels by the growth rate.
        drop_rate: the probability behind each layer.
        num_classes: how many numbers come out.
        memory_efficient: taken and ignored: nothing is computed again here.
    """

    def __init__(
        self,
        growth_rate: int = 32,
        block_config: Sequence[int] = (6, 12, 24, 16),
        num_init_features: int = 64,
        bn_size: int = 4,
        drop_rate: float = 0,
        num_classes: int = 1000,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        del memory_efficient
        inner = num_init_features
        parts: dict[str, Any] = {"conv0": torch_nn.Conv2d(3, inner, 7, 2, 3, bias=False)}
        parts |= {"norm0": torch_nn.BatchNorm2d(inner), "relu0": nn.ReLU()}
        parts["pool0"] = torch_nn.MaxPool2d(3, 2, 1)
        for number, count in enumerate(block_config, 1):
            dense = _Dense(count, inner, growth_rate, bn_size, float(drop_rate))
            parts[f"denseblock{number}"] = dense
            inner += count * growth_rate
            if number < len(block_config):
                parts[f"transition{number}"] = _transition(inner, inner // 2)
                inner //= 2
        parts["norm5"] = torch_nn.BatchNorm2d(inner)
        self.features = nn.SequentialCell(OrderedDict(parts))
        self.classifier = torch_nn.Linear(inner, num_classes)
        fill(self.classifier.bias, "zeros")
        for _, cell in self.cells_and_names():
            if isinstance(cell, nn.Conv2d):
                fill(cell.weight, HeNormal())
        self.set_train()

    def construct(self, x: Any) -> Any:
        """Return a number for each class."""
        return self.classifier(ops.mean(ops.relu(self.features(x)), (2, 3)))


def _transition(inner: int, outer: int) -> Any:
    parts: list[tuple[str, Any]] = [("norm", torch_nn.BatchNorm2d(inner)), ("relu", nn.ReLU())]
    parts.append(("conv", torch_nn.Conv2d(inner, outer, 1, bias=False)))
    parts.append(("pool", torch_nn.AvgPool2d(2, 2)))
    return nn.SequentialCell(OrderedDict(parts))


mobilenet_v2 = maker("mobilenet_v2", weights.MobileNet_V2_Weights, MobileNetV2)
densenet121 = maker("densenet121", weights.DenseNet121_Weights, DenseNet)
densenet161 = maker(
    *("densenet161", weights.DenseNet161_Weights, DenseNet),
    growth_rate=48,
    block_config=(6, 12, 36, 24),
    num_init_features=96,
)
densenet169 = maker(
    "densenet169", weights.DenseNet169_Weights, DenseNet, block_config=(6, 12, 32, 32)
)
densenet201 = maker(
    "densenet201", weights.DenseNet201_Weights, DenseNet, block_config=(6, 12, 48, 32)
)
