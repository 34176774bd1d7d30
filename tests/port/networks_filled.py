"""What ``record_networks.py`` and ``test_networks.py`` share: which networks, which weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

TRAINED: list[tuple[str, list[Any], dict[str, Any], int]] = [
    ("resnet18", [], {"num_classes": 5}, 64),
    ("resnet50", [], {"num_classes": 5}, 32),
    ("resnet50", [], {"num_classes": 5, "replace_stride_with_dilation": [False, True, True]}, 40),
    ("resnext50_32x4d", [], {"num_classes": 5}, 32),
    ("wide_resnet50_2", [], {"num_classes": 3}, 32),
    ("mobilenet_v2", [], {"num_classes": 5, "dropout": 0.0}, 64),
    ("mobilenet_v2", [], {"num_classes": 5, "dropout": 0.0, "width_mult": 0.35}, 32),
    ("densenet121", [], {"num_classes": 5}, 64),
    ("DenseNet", [12, [2, 3], 16, 2], {"num_classes": 5}, 32),
    ("VisionTransformer", [16, 4, 2, 2, 8, 24], {"num_classes": 5}, 16),
    ("VisionTransformer", [16, 8, 1, 4, 8, 24], {"representation_size": 6, "num_classes": 4}, 16),
]
"""Networks whose loss and gradients are compared, in evaluation mode.

Name, arguments, settings, pixels of a side.
"""
ASKED = [("vgg11_bn", 32), ("vgg16", 32), ("alexnet", 96), ("vit_b_32", 224)]
"""Larger ones, of which the first numbers that come out are compared."""
NAMED = [
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d"),
    *("resnext101_32x8d", "wide_resnet50_2", "wide_resnet101_2", "mobilenet_v2", "densenet121"),
    *("densenet161", "densenet169", "densenet201", "alexnet", "vit_b_16", "vit_b_32"),
    *(f"vgg{size}{norm}" for size in (11, 13, 16, 19) for norm in ("", "_bn")),
]
"""Networks whose names and shapes of weights are compared."""


def filled(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, np.ndarray]:
    """Return weights by name: waves, as large as first values are."""
    made = {}
    for number, (name, shape) in enumerate(sorted(shapes)):
        count = int(np.prod(shape))
        wave = np.sin(0.7 * np.arange(count) + number)
        if len(shape) > 1:
            wave = wave * (2 / np.prod(shape[1:])) ** 0.5
        elif name.endswith(("weight", "running_var")):
            wave = 1 + 0.1 * wave
        else:
            wave = 0.1 * wave
        made[name] = wave.reshape(shape).astype(np.float32)
    return made


def pictures(side: int, count: int = 2) -> np.ndarray:
    """Return pictures ``(count, 3, side, side)`` of waves."""
    size = count * 3 * side * side
    return np.sin(0.37 * np.arange(size)).reshape(count, 3, side, side).astype(np.float32)
