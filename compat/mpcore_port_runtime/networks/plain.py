"""VGG and AlexNet: convolutions one behind the other, and three linear layers.

Papers: Simonyan 2014 (arXiv 1409.1556), Krizhevsky 2014 (1404.5997). Names of parameters and
arguments: torchvision 0.28 ``models/vgg.py``, ``models/alexnet.py``.
"""

from __future__ import annotations

import functools
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
    "VGG",
    "AlexNet",
    "alexnet",
    "vgg11",
    "vgg11_bn",
    "vgg13",
    "vgg13_bn",
    "vgg16",
    "vgg16_bn",
    "vgg19",
    "vgg19_bn",
]


class VGG(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """A stack of convolutions and three linear layers.

    Args:
        features: the convolutions, a Cell whose last layer has 512 channels.
        num_classes: how many numbers come out.
        init_weights: whether weights start as torchvision's; else as those of each layer.
        dropout: the probability between the linear layers.
    """

    def __init__(
        self,
        features: Any,
        num_classes: int = 1000,
        init_weights: bool = True,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.SequentialCell(
            *(torch_nn.Linear(512 * 49, 4096), nn.ReLU(), torch_nn.Dropout(dropout)),
            *(torch_nn.Linear(4096, 4096), nn.ReLU(), torch_nn.Dropout(dropout)),
            torch_nn.Linear(4096, num_classes),
        )
        for _, cell in self.cells_and_names() if init_weights else ():
            if isinstance(cell, nn.Conv2d):
                _start(cell, HeNormal(mode="fan_out", nonlinearity="relu"))
            elif isinstance(cell, nn.Dense):
                _start(cell, Normal(0.01))
        self.set_train()

    def construct(self, x: Any) -> Any:
        """Return a number for each class."""
        return self.classifier(ops.flatten(self.avgpool(self.features(x))))


def _start(layer: Any, way: Any) -> None:
    fill(layer.weight, way)
    if layer.has_bias:
        fill(layer.bias, "zeros")


def _vgg(counts: Sequence[int], norm: bool, **settings: Any) -> VGG:
    layers: list[Any] = []
    inner = 3
    for stage, count in enumerate(counts):
        outer = min(64 * 2**stage, 512)
        for _ in range(count):
            layers.append(torch_nn.Conv2d(inner, outer, 3, padding=1))
            layers += [torch_nn.BatchNorm2d(outer), nn.ReLU()] if norm else [nn.ReLU()]
            inner = outer
        layers.append(torch_nn.MaxPool2d(2, 2))
    return VGG(nn.SequentialCell(*layers), **settings)


def _of(*counts: int, norm: bool = False) -> Any:
    """A VGG network."""
    return functools.partial(_vgg, counts, norm)


vgg11 = maker("vgg11", weights.VGG11_Weights, _of(1, 1, 2, 2, 2))
vgg11_bn = maker("vgg11_bn", weights.VGG11_BN_Weights, _of(1, 1, 2, 2, 2, norm=True))
vgg13 = maker("vgg13", weights.VGG13_Weights, _of(2, 2, 2, 2, 2))
vgg13_bn = maker("vgg13_bn", weights.VGG13_BN_Weights, _of(2, 2, 2, 2, 2, norm=True))
vgg16 = maker("vgg16", weights.VGG16_Weights, _of(2, 2, 3, 3, 3))
vgg16_bn = maker("vgg16_bn", weights.VGG16_BN_Weights, _of(2, 2, 3, 3, 3, norm=True))
vgg19 = maker("vgg19", weights.VGG19_Weights, _of(2, 2, 4, 4, 4))
vgg19_bn = maker("vgg19_bn", weights.VGG19_BN_Weights, _of(2, 2, 4, 4, 4, norm=True))


class AlexNet(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Five convolutions and three linear layers, of one tower."""

    def __init__(self, num_classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        conv, pool = torch_nn.Conv2d, functools.partial(torch_nn.MaxPool2d, 3, 2)
        self.features = nn.SequentialCell(
            *(conv(3, 64, 11, 4, 2), nn.ReLU(), pool()),
            *(conv(64, 192, 5, padding=2), nn.ReLU(), pool()),
            *(conv(192, 384, 3, padding=1), nn.ReLU()),
            *(conv(384, 256, 3, padding=1), nn.ReLU()),
            *(conv(256, 256, 3, padding=1), nn.ReLU(), pool()),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.SequentialCell(
            *(torch_nn.Dropout(dropout), torch_nn.Linear(256 * 36, 4096), nn.ReLU()),
            *(torch_nn.Dropout(dropout), torch_nn.Linear(4096, 4096), nn.ReLU()),
            torch_nn.Linear(4096, num_classes),
        )
        self.set_train()

    def construct(self, x: Any) -> Any:
        """Return a number for each class."""
        return self.classifier(ops.flatten(self.avgpool(self.features(x))))


alexnet = maker("alexnet", weights.AlexNet_Weights, AlexNet)
