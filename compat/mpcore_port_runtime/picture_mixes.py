"""What torchvision's second transforms have besides those of the first: kinds, and mixed batches.

Source: torchvision 0.28.0 ``transforms/v2/_misc.py``, ``transforms/v2/_augment.py``.
"""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mpcore_port_runtime.picture_functions import convert_image_dtype
from mpcore_port_runtime.vision import NUMBERS

__all__ = ["CutMix", "MixUp", "ToDtype"]

_FLOATS = (ms.float16, ms.float32, ms.float64, ms.bfloat16)


class ToDtype:
    """A tensor of another dtype, in whose range white is where ``scale`` says so."""

    def __init__(self, dtype: Any, scale: bool = False) -> None:
        if isinstance(dtype, dict):
            msg = "a `dtype` for each kind is not ported: give one"
            raise NotImplementedError(msg)
        self.dtype, self.scale = dtype, scale

    def __call__(self, image: Any) -> Any:
        """Return the tensor; pictures of PIL stay."""
        if not isinstance(image, Tensor):
            return image
        return convert_image_dtype(image, self.dtype) if self.scale else image.astype(self.dtype)


def _rolled(x: Any) -> Any:
    return ops.cat([x[-1:], x[:-1]])


class _Mixed:
    """Pictures (N, C, H, W) and labels, each mixed with the one in front of it."""

    def __init__(
        self, *, alpha: float = 1.0, num_classes: int | None = None, labels_getter: Any = "default"
    ) -> None:
        if labels_getter != "default":
            msg = "`labels_getter` is not ported: hand over pictures and labels"
            raise NotImplementedError(msg)
        self.alpha, self.num_classes = float(alpha), num_classes

    def __call__(self, *inputs: Any) -> tuple[Any, Any]:
        """Return pictures and shares of classes.

        Raises:
            NotImplementedError: something else than pictures and labels is given.
            ValueError: they do not fit, or nobody says how many classes there are.
        """
        given = inputs if len(inputs) > 1 else inputs[0]
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            msg = "mixing is ported for pictures and labels: hand over these two"
            raise NotImplementedError(msg)
        images, labels = given
        if labels.ndim == 1 and self.num_classes is None:
            msg = "num_classes must be passed if the labels are index-based (1D)"
            raise ValueError(msg)
        if images.ndim != 4 or images.shape[0] != labels.shape[0]:
            msg = f"Expected a batch of pictures and its labels, got {images.shape}, {labels.shape}"
            raise ValueError(msg)
        mixed, share = self._mix(images, float(NUMBERS.get().beta(self.alpha, self.alpha)))
        if labels.ndim == 1:
            held = np.arange(self.num_classes or 0)
            labels = (labels.expand_dims(1) == Tensor(held)).astype(ms.float32)
        labels = labels if labels.dtype in _FLOATS else labels.astype(ms.float32)
        return mixed, _rolled(labels) * (1.0 - share) + labels * share

    def _mix(self, images: Any, share: float) -> tuple[Any, float]:
        raise NotImplementedError


class MixUp(_Mixed):
    """Pictures added up."""

    def _mix(self, images: Any, share: float) -> tuple[Any, float]:
        return _rolled(images) * (1.0 - share) + images * share, share


class CutMix(_Mixed):
    """Pictures with a part of another."""

    def _mix(self, images: Any, share: float) -> tuple[Any, float]:
        high, wide = (int(one) for one in images.shape[-2:])
        x, y = int(NUMBERS.get().integers(wide)), int(NUMBERS.get().integers(high))
        reach = 0.5 * math.sqrt(1.0 - share)
        across, down = int(reach * wide), int(reach * high)
        left, right = max(x - across, 0), min(x + across, wide)
        top, bottom = max(y - down, 0), min(y + down, high)
        inside = np.zeros((high, wide), bool)
        inside[top:bottom, left:right] = True
        kept = 1.0 - (right - left) * (bottom - top) / (wide * high)
        return ops.where(Tensor(inside), _rolled(images), images), kept
