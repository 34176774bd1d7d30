"""Networks of torchvision that training scripts choose by name, as Cells; no weights are fetched.

Their parameters have torchvision's names and first values of the same distributions. ResNet-18
gave its numbers with the same weights, by hand; the others were not compared.

Source: the papers (He 2015, Zagoruyko 2016, Xie 2017, Simonyan 2014), and what
torchvision 0.28 prints of its modules and parameters.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from mindspore import nn, ops
from mindspore.common.initializer import HeNormal, Normal, initializer

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "vgg11",
    "vgg11_bn",
    "vgg13",
    "vgg13_bn",
    "vgg16",
    "vgg16_bn",
    "vgg19",
    "vgg19_bn",
    "wide_resnet50_2",
    "wide_resnet101_2",
]


def _conv(inner: int, outer: int, size: int, stride: int = 1, group: int = 1) -> Any:
    """Return a convolution without bias whose sizes hold, or are halved by its stride."""
    return nn.Conv2d(
        *(inner, outer, size, stride),
        pad_mode="pad",
        padding=size // 2,
        group=group,
        weight_init=HeNormal(mode="fan_out", nonlinearity="relu"),
    )


class _Block(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Convolutions beside a shortcut: two of 3 x 3, or 1, 3, 1 where it is a bottleneck."""

    def __init__(self, inner: int, width: int, outer: int, stride: int, group: int) -> None:
        super().__init__()
        self.is_deep = width != outer or group > 1
        sizes = (1, 3, 1) if self.is_deep else (3, 3)
        strides = (1, stride, 1) if self.is_deep else (stride, 1)
        ends = (inner, width, width, outer) if self.is_deep else (inner, width, outer)
        for place, size in enumerate(sizes):
            groups = group if self.is_deep and size == 3 else 1
            conv = _conv(ends[place], ends[place + 1], size, strides[place], groups)
            setattr(self, f"conv{place + 1}", conv)
            setattr(self, f"bn{place + 1}", nn.BatchNorm2d(ends[place + 1], momentum=0.9))
        self.relu = nn.ReLU()
        self.downsample = None
        if stride != 1 or inner != outer:
            norm = nn.BatchNorm2d(outer, momentum=0.9)
            self.downsample = nn.SequentialCell(_conv(inner, outer, 1, stride), norm)

    def construct(self, x: Any) -> Any:
        """Return the sum, rectified."""
        made = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.is_deep:
            made = self.bn3(self.conv3(self.relu(made)))
        return self.relu(made + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Four stages of blocks between a stem and a linear layer."""

    def __init__(
        self, counts: Sequence[int], expansion: int, base: int, group: int, num_classes: int
    ) -> None:
        super().__init__()
        self.conv1 = _conv(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64, momentum=0.9)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        inner = 64
        for stage, count in enumerate(counts):
            planes = 64 * 2**stage
            width, outer = planes * base // 64 * group, planes * expansion
            blocks = []
            for place in range(count):
                stride = 2 if stage and not place else 1
                blocks.append(_Block(inner, width, outer, stride, group))
                inner = outer
            setattr(self, f"layer{stage + 1}", nn.SequentialCell(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Dense(inner, num_classes)

    def construct(self, x: Any) -> Any:
        """Return a number for each class."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(ops.flatten(self.avgpool(x)))


def _no_weights(weights: Any, pretrained: Any) -> None:
    if weights is not None or pretrained:
        msg = (
            "`weights` must be None: no weights are fetched; take a file along with "
            "mpcore convert-weights and load it"
        )
        raise BackendError(msg)


def _resnet(
    counts: Sequence[int],
    expansion: int,
    base: int = 64,
    group: int = 1,
    *,
    weights: Any = None,
    pretrained: bool = False,
    progress: bool = True,
    num_classes: int = 1000,
    zero_init_residual: bool = False,
) -> ResNet:
    """A residual network with torchvision's names of parameters; no weights are fetched."""
    del progress
    _no_weights(weights, pretrained)
    made = ResNet(counts, expansion, base, group, num_classes)
    for _, block in made.cells_and_names():
        if zero_init_residual and isinstance(block, _Block):
            last = block.bn3 if block.is_deep else block.bn2
            last.gamma.set_data(initializer("zeros", last.gamma.shape, last.gamma.dtype))
    return made


resnet18 = functools.partial(_resnet, (2, 2, 2, 2), 1)
resnet34 = functools.partial(_resnet, (3, 4, 6, 3), 1)
resnet50 = functools.partial(_resnet, (3, 4, 6, 3), 4)
resnet101 = functools.partial(_resnet, (3, 4, 23, 3), 4)
resnet152 = functools.partial(_resnet, (3, 8, 36, 3), 4)
resnext50_32x4d = functools.partial(_resnet, (3, 4, 6, 3), 4, 4, 32)
resnext101_32x8d = functools.partial(_resnet, (3, 4, 23, 3), 4, 8, 32)
wide_resnet50_2 = functools.partial(_resnet, (3, 4, 6, 3), 4, 128)
wide_resnet101_2 = functools.partial(_resnet, (3, 4, 23, 3), 4, 128)


class VGG(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Convolutions of 3 x 3 in five stages, and three linear layers."""

    def __init__(self, counts: Sequence[int], norm: bool, num_classes: int, dropout: float) -> None:
        super().__init__()
        layers: list[Any] = []
        inner = 3
        init = HeNormal(mode="fan_out", nonlinearity="relu")
        for stage, count in enumerate(counts):
            outer = min(64 * 2**stage, 512)
            for _ in range(count):
                settings = {"pad_mode": "pad", "padding": 1, "has_bias": True}
                conv = nn.Conv2d(inner, outer, 3, weight_init=init, bias_init="zeros", **settings)
                layers += [conv, nn.BatchNorm2d(outer, momentum=0.9)] if norm else [conv]
                layers.append(nn.ReLU())
                inner = outer
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.SequentialCell(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        linear = functools.partial(nn.Dense, weight_init=Normal(0.01), bias_init="zeros")
        self.classifier = nn.SequentialCell(
            *(linear(512 * 49, 4096), nn.ReLU(), nn.Dropout(p=dropout)),
            *(linear(4096, 4096), nn.ReLU(), nn.Dropout(p=dropout)),
            linear(4096, num_classes),
        )

    def construct(self, x: Any) -> Any:
        """Return a number for each class."""
        return self.classifier(ops.flatten(self.avgpool(self.features(x))))


def _vgg(
    counts: Sequence[int],
    norm: bool,
    *,
    weights: Any = None,
    pretrained: bool = False,
    progress: bool = True,
    num_classes: int = 1000,
    dropout: float = 0.5,
) -> VGG:
    """A VGG network with torchvision's names of parameters; no weights are fetched."""
    del progress
    _no_weights(weights, pretrained)
    return VGG(counts, norm, num_classes, dropout)


vgg11, vgg11_bn = (functools.partial(_vgg, (1, 1, 2, 2, 2), norm) for norm in (False, True))
vgg13, vgg13_bn = (functools.partial(_vgg, (2, 2, 2, 2, 2), norm) for norm in (False, True))
vgg16, vgg16_bn = (functools.partial(_vgg, (2, 2, 3, 3, 3), norm) for norm in (False, True))
vgg19, vgg19_bn = (functools.partial(_vgg, (2, 2, 4, 4, 4), norm) for norm in (False, True))
