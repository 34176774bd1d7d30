"""ResNet, ResNeXt and wide ResNet.

Papers: He 2015 (arXiv 1512.03385), Xie 2017 (1611.05431), Zagoruyko 2016 (1605.07146). Names of
parameters and arguments: torchvision 0.28 ``models/resnet.py``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from mindspore import nn, ops
from mindspore.common.initializer import HeNormal

from mpcore_port_runtime import torch_nn
from mpcore_port_runtime.modules import fill
from mpcore_port_runtime.networks import weights
from mpcore_port_runtime.networks.weights import maker

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BasicBlock",
    "Bottleneck",
    "ResNet",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "wide_resnet50_2",
    "wide_resnet101_2",
]


def conv3x3(
    in_planes: int, out_planes: int, stride: int = 1, groups: int = 1, dilation: int = 1
) -> Any:
    """Return a convolution of 3 x 3 without bias; sizes hold, or are halved by its stride."""
    return torch_nn.Conv2d(
        *(in_planes, out_planes, 3, stride, dilation, dilation, groups), bias=False
    )


def conv1x1(in_planes: int, out_planes: int, stride: int = 1) -> Any:
    """Return a convolution of 1 x 1 without bias."""
    return torch_nn.Conv2d(in_planes, out_planes, 1, stride, bias=False)


class BasicBlock(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Two convolutions of 3 x 3 beside a shortcut."""

    expansion = 1

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: Any = None,
        groups: int = 1,
        base_width: int = 64,
        dilation: int = 1,
        norm_layer: Any = None,
    ) -> None:
        super().__init__()
        if (groups, base_width, dilation) != (1, 64, 1):
            msg = "BasicBlock has no groups, no other width and no dilation: take Bottleneck"
            raise ValueError(msg)
        norm = norm_layer or torch_nn.BatchNorm2d
        self.conv1, self.bn1 = conv3x3(inplanes, planes, stride), norm(planes)
        self.relu = nn.ReLU()
        self.conv2, self.bn2 = conv3x3(planes, planes), norm(planes)
        self.downsample, self.stride = downsample, stride

    def construct(self, x: Any) -> Any:
        """Return the sum, rectified."""
        made = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(made + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1 beside a shortcut; the middle one has the stride."""

    expansion = 4

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: Any = None,
        groups: int = 1,
        base_width: int = 64,
        dilation: int = 1,
        norm_layer: Any = None,
    ) -> None:
        super().__init__()
        norm = norm_layer or torch_nn.BatchNorm2d
        width, outer = int(planes * (base_width / 64.0)) * groups, planes * self.expansion
        self.conv1, self.bn1 = conv1x1(inplanes, width), norm(width)
        self.conv2, self.bn2 = conv3x3(width, width, stride, groups, dilation), norm(width)
        self.conv3, self.bn3 = conv1x1(width, outer), norm(outer)
        self.relu = nn.ReLU()
        self.downsample, self.stride = downsample, stride

    def construct(self, x: Any) -> Any:
        """Return the sum, rectified."""
        made = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        made = self.bn3(self.conv3(made))
        return self.relu(made + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Four stages of blocks between a stem and a linear layer.

    Args:
        block: the class of a block, with ``expansion``.
        layers: how many blocks a stage has, four numbers.
        num_classes: how many numbers come out.
        zero_init_residual: whether the last norm of each block starts at 0.
        groups: groups of the convolutions of 3 x 3.
        width_per_group: their width at 64 planes.
        replace_stride_with_dilation: for the last three stages, whether they dilate.
        norm_layer: what makes a norm of a number of channels; BatchNorm2d.
    """

    def __init__(
        self,
        block: Any,
        layers: Sequence[int],
        num_classes: int = 1000,
        zero_init_residual: bool = False,
        groups: int = 1,
        width_per_group: int = 64,
        replace_stride_with_dilation: Sequence[bool] | None = None,
        norm_layer: Any = None,
    ) -> None:
        super().__init__()
        self._norm_layer = norm_layer or torch_nn.BatchNorm2d
        self.inplanes, self.dilation = 64, 1
        self.groups, self.base_width = groups, width_per_group
        dilates = (False, *(replace_stride_with_dilation or (False,) * 3))
        if len(dilates) != 4:  # of the four stages the first never does
            msg = f"`replace_stride_with_dilation` must have 3 values, got {len(dilates) - 1}"
            raise ValueError(msg)
        self.conv1 = torch_nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1, self.relu = self._norm_layer(64), nn.ReLU()
        self.maxpool = torch_nn.MaxPool2d(3, 2, 1)
        for stage, count in enumerate(layers):
            stride = 2 if stage else 1
            made = self._make_layer(block, 64 * 2**stage, count, stride, dilates[stage])
            setattr(self, f"layer{stage + 1}", made)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = torch_nn.Linear(512 * block.expansion, num_classes)
        _start(self, zero_init_residual)
        self.set_train()

    def _make_layer(
        self, block: Any, planes: int, blocks: int, stride: int = 1, dilate: bool = False
    ) -> Any:
        """Return a stage: subclasses of torchvision's call it by this name."""
        before = self.dilation
        if dilate:
            self.dilation, stride = self.dilation * stride, 1
        outer, shortcut = planes * block.expansion, None
        if stride != 1 or self.inplanes != outer:
            conv = conv1x1(self.inplanes, outer, stride)
            shortcut = nn.SequentialCell(conv, self._norm_layer(outer))
        more = (self.groups, self.base_width)
        made = [block(self.inplanes, planes, stride, shortcut, *more, before, self._norm_layer)]
        self.inplanes = outer
        for _ in range(1, blocks):
            last = (*more, self.dilation, self._norm_layer)
            made.append(block(outer, planes, 1, None, *last))
        return nn.SequentialCell(*made)

    def _forward_impl(self, x: Any) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(ops.flatten(self.avgpool(x)))

    def construct(self, x: Any) -> Any:
        """Return a number for each class."""
        return self._forward_impl(x)


def _start(net: ResNet, zero: bool) -> None:
    """Give first values: He's for convolutions by what goes out, 0 to last norms if asked."""
    he = HeNormal(mode="fan_out", nonlinearity="relu")
    for _, cell in net.cells_and_names():
        if isinstance(cell, nn.Conv2d):
            fill(cell.weight, he)
        last: Any = cell.bn3 if isinstance(cell, Bottleneck) else None
        last = cell.bn2 if isinstance(cell, BasicBlock) else last
        if zero and getattr(last, "gamma", None) is not None:
            fill(last.gamma, "zeros")


def _basic(*layers: int) -> Any:
    """A residual network of blocks with two convolutions."""
    return functools.partial(ResNet, BasicBlock, layers)


def _deep(*layers: int) -> Any:
    """A residual network of bottlenecks."""
    return functools.partial(ResNet, Bottleneck, layers)


resnet18 = maker("resnet18", weights.ResNet18_Weights, _basic(2, 2, 2, 2))
resnet34 = maker("resnet34", weights.ResNet34_Weights, _basic(3, 4, 6, 3))
resnet50 = maker("resnet50", weights.ResNet50_Weights, _deep(3, 4, 6, 3))
resnet101 = maker("resnet101", weights.ResNet101_Weights, _deep(3, 4, 23, 3))
resnet152 = maker("resnet152", weights.ResNet152_Weights, _deep(3, 8, 36, 3))
resnext50_32x4d = maker(
    *("resnext50_32x4d", weights.ResNeXt50_32X4D_Weights, _deep(3, 4, 6, 3)),
    groups=32,
    width_per_group=4,
)
resnext101_32x8d = maker(
    *("resnext101_32x8d", weights.ResNeXt101_32X8D_Weights, _deep(3, 4, 23, 3)),
    groups=32,
    width_per_group=8,
)
wide_resnet50_2 = maker(
    *("wide_resnet50_2", weights.Wide_ResNet50_2_Weights, _deep(3, 4, 6, 3)), width_per_group=128
)
wide_resnet101_2 = maker(
    *("wide_resnet101_2", weights.Wide_ResNet101_2_Weights, _deep(3, 4, 23, 3)), width_per_group=128
)
