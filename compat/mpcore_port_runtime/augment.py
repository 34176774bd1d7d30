"""More of what torchvision does to pictures: colours, choices, and the way back from tensors.

Source: the documentation of torchvision 0.28, which itself was not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np
from mindspore import Tensor
from PIL import Image, ImageEnhance

from mpcore_port_runtime.picture_tensors import blended, grey_of
from mpcore_port_runtime.vision import NUMBERS, Compose, Grayscale, picture_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ColorJitter", "RandomApply", "RandomChoice", "RandomGrayscale", "ToPILImage"]


class RandomApply:
    """Transforms one after the other, or none of them."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]], p: float = 0.5) -> None:
        self.transforms, self.p = transforms, p

    def __call__(self, image: Any) -> Any:
        """Run them all, or return the picture."""
        if self.p < NUMBERS.get().random():
            return image
        return Compose(self.transforms)(image)


class RandomChoice:
    """One of several transforms."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]], p: Any = None) -> None:
        self.transforms, self.p = list(transforms), p

    def __call__(self, image: Any) -> Any:
        """Run one of them."""
        shares = None if self.p is None else np.asarray(self.p, float) / np.sum(self.p)
        return self.transforms[NUMBERS.get().choice(len(self.transforms), p=shares)](image)


class RandomGrayscale:
    """The picture, or the same without colours in as many channels."""

    def __init__(self, p: float = 0.1) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        """Return one of them."""
        if NUMBERS.get().random() >= self.p:
            return image if isinstance(image, Tensor) else picture_of(image)
        is_tensor = isinstance(image, Tensor)
        return Grayscale(image.shape[-3] if is_tensor else len(picture_of(image).getbands()))(image)


class ColorJitter:
    """Brightness, contrast, saturation and hue by random factors, in random order."""

    def __init__(
        self, brightness: Any = 0, contrast: Any = 0, saturation: Any = 0, hue: Any = 0
    ) -> None:
        given = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        self.ranges = {name: _range(name, value, 1.0) for name, value in given.items()}
        self.ranges["hue"] = _range("hue", hue, 0.0)

    def __call__(self, image: Any) -> Any:
        """Return another picture."""
        given = [(name, limits) for name, limits in self.ranges.items() if limits is not None]
        for place in NUMBERS.get().permutation(len(given)):
            name, limits = given[place]
            image = jittered(image, name, float(NUMBERS.get().uniform(*limits)))
        return image


def _range(name: str, value: Any, center: float) -> tuple[float, float] | None:
    """Return the limits of a factor; None where it changes nothing."""
    if isinstance(value, int | float):
        low, high = center - value, center + value
        low, bad = (max(low, 0.0), value < 0) if center else (low, not 0 <= value <= 0.5)
    else:
        low, high = (float(limit) for limit in value)
        bad = not (0 <= low <= high if center else -0.5 <= low <= high <= 0.5)
    if bad:
        msg = f"`{name}` must be a number or limits of factors, got {value!r}"
        raise ValueError(msg)
    return None if low == high == center else (low, high)


_ENHANCE = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "saturation": ImageEnhance.Color,
}


def jittered(image: Any, name: str, factor: float) -> Any:
    """Return a picture with one of the four moved by a factor; of hue it is a share of a turn."""
    if isinstance(image, Tensor):
        return _jittered(image, name, float(factor))
    if name != "hue":
        return _ENHANCE[name](picture_of(image)).enhance(factor)
    if picture_of(image).mode in ("L", "1", "I", "F"):
        return image
    hue, saturation, value = image.convert("HSV").split()
    turned = np.array(hue, np.uint8) + np.uint8(np.int32(factor * 255) % 256)
    parts = (Image.fromarray(turned.astype(np.uint8), "L"), saturation, value)
    return Image.merge("HSV", parts).convert(image.mode)


def _jittered(x: Any, name: str, factor: float) -> Any:
    """Return the same of a tensor (..., C, H, W)."""
    if name == "brightness":
        return blended(x, 0.0, factor)
    if name == "contrast":
        means = grey_of(x).astype(mindspore.float32).mean((-3, -2, -1), keep_dims=True)
        return blended(x, means, factor)
    if name == "saturation":
        return x if x.shape[-3] == 1 else blended(x, grey_of(x).astype(mindspore.float32), factor)
    if factor == 0:
        return x
    msg = "hues are ported for pictures of PIL, got a tensor: put ToTensor behind it"
    raise NotImplementedError(msg)


class ToPILImage:
    """A tensor (C, H, W) or array (H, W, C) as a picture; floats are in [0, 1]."""

    def __init__(self, mode: str | None = None) -> None:
        self.mode = mode

    def __call__(self, picture: Any) -> Any:
        """Return the picture."""
        is_tensor = isinstance(picture, Tensor)
        array = picture.asnumpy() if is_tensor else np.asarray(picture)
        if is_tensor:
            array = array[None] if array.ndim == 2 else array
            if array.dtype.kind == "f" and self.mode != "F":
                array = (array * 255).astype(np.uint8)
            array = array.transpose(1, 2, 0)
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        return Image.fromarray(array, self.mode) if self.mode else Image.fromarray(array)
