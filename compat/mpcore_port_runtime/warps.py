"""Pictures turned, moved and covered as torchvision does it, by PIL and numpy.

Source: torchvision 0.29.2 ``transforms/functional.py``, ``transforms/transforms.py``; what is not
random was compared with what it gave.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor
from PIL import Image

from mpcore_port_runtime.vision import NUMBERS, picture_of, way_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RandomAffine", "RandomErasing", "RandomRotation", "filled", "warped"]


class RandomAffine:
    """A picture turned, moved, scaled and sheared about its middle."""

    def __init__(
        self,
        degrees: Any,
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: Any = None,
        interpolation: Any = "nearest",
        fill: Any = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        self.degrees, self.translate, self.scale = _limits(degrees), translate, scale
        self.shear = None if shear is None else _limits(shear)
        self.way, self.fill, self.center = way_of(interpolation), fill, center

    def __call__(self, image: Any) -> Any:
        """Return another picture of the same size."""
        numbers = NUMBERS.get()
        angle = float(numbers.uniform(*self.degrees))
        shares = self.translate or (0.0, 0.0)
        far = [share * length for share, length in zip(shares, picture_of(image).size, strict=True)]
        moved = tuple(round(float(numbers.uniform(-most, most))) for most in far)
        scale = float(numbers.uniform(*self.scale)) if self.scale else 1.0
        shear = (0.0, 0.0)
        if self.shear is not None:
            sides = self.shear[:2], self.shear[2:]
            shear = tuple(float(numbers.uniform(*side)) if side else 0.0 for side in sides)  # type: ignore[assignment]
        return warped(image, angle, moved, scale, shear, self.way, self.fill, self.center)


def warped(
    image: Any,
    angle: float,
    moved: Sequence[float],
    scale: float,
    shear: Sequence[float],
    way: Any,
    fill: Any,
    center: Sequence[float] | None = None,
) -> Any:
    """Return torchvision.transforms.functional.affine of a PIL picture."""
    middle = center or [0.5 * length for length in image.size]
    matrix = _inverse(middle, angle, moved, scale, shear)
    to = Image.Transform.AFFINE
    return image.transform(image.size, to, matrix, way, fillcolor=filled(image, fill))


def _inverse(
    center: Sequence[float],
    angle: float,
    moved: Sequence[float],
    scale: float,
    shear: Sequence[float],
) -> list[float]:
    """Return where a pixel comes from, as PIL wants it: two rows of three."""
    turn, (lean, rise) = math.radians(angle), map(math.radians, shear)
    cos, sin = math.cos(turn - rise) / math.cos(rise), math.sin(turn - rise) / math.cos(rise)
    a, b = cos, -cos * math.tan(lean) - math.sin(turn)
    c, d = sin, -sin * math.tan(lean) + math.cos(turn)
    rows = [[d / scale, -b / scale], [-c / scale, a / scale]]
    away = [-at - by for at, by in zip(center, moved, strict=True)]
    found: list[float] = []
    for (first, second), back in zip(rows, center, strict=True):
        found += [first, second, first * away[0] + second * away[1] + back]
    return found


def _limits(value: Any) -> tuple[float, ...]:
    if isinstance(value, int | float):
        if value < 0:
            msg = f"a single number of degrees must not be negative, got {value}"
            raise ValueError(msg)
        return -float(value), float(value)
    return tuple(float(one) for one in value)


def filled(image: Any, fill: Any) -> Any:
    """Return a colour for all bands of a picture."""
    bands = len(image.getbands())
    if bands == 1:
        return fill[0] if isinstance(fill, list | tuple) else fill
    listed = tuple(fill) if isinstance(fill, list | tuple) else (fill,)
    return tuple(int(one) for one in (listed * bands if len(listed) == 1 else listed))


class RandomRotation:
    """A picture turned about its middle."""

    def __init__(
        self,
        degrees: Any,
        interpolation: Any = "nearest",
        expand: bool = False,
        center: Any = None,
        fill: Any = 0,
    ) -> None:
        self.degrees, self.way, self.expand = _limits(degrees), way_of(interpolation), expand
        self.center, self.fill = center, fill

    def __call__(self, image: Any) -> Any:
        """Return another picture."""
        angle = float(NUMBERS.get().uniform(*self.degrees))
        fill = filled(picture_of(image), self.fill)
        return image.rotate(angle, self.way, self.expand, self.center, fillcolor=fill)


class RandomErasing:
    """A tensor (C, H, W) with a part of it covered, or as it is."""

    def __init__(
        self,
        p: float = 0.5,
        scale: tuple[float, float] = (0.02, 0.33),
        ratio: tuple[float, float] = (0.3, 3.3),
        value: Any = 0,
        inplace: bool = False,
    ) -> None:
        del inplace
        self.p, self.scale, self.ratio, self.value = p, scale, ratio, value

    def __call__(self, tensor: Any) -> Any:
        """Return one of them."""
        numbers = NUMBERS.get()
        if numbers.random() >= self.p:
            return tensor
        bands, high, wide = tensor.shape
        for _ in range(10):
            area = high * wide * numbers.uniform(*self.scale)
            shape = math.exp(numbers.uniform(*map(math.log, self.ratio)))
            height, width = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if height < high and width < wide:
                top = int(numbers.integers(high - height + 1))
                left = int(numbers.integers(wide - width + 1))
                array = tensor.asnumpy().copy()
                part = array[:, top : top + height, left : left + width]
                part[...] = self._cover(part.shape, bands)
                return Tensor(array)
        return tensor

    def _cover(self, shape: tuple[int, ...], bands: int) -> Any:
        if self.value == "random":
            return NUMBERS.get().standard_normal(shape)
        listed = self.value if isinstance(self.value, list | tuple) else (self.value,)
        return np.resize(np.asarray(listed, np.float32), bands).reshape(bands, 1, 1)
