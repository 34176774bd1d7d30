"""Pictures and data sets as torchvision's scripts use them: PIL in, tensors out.

Deterministic transforms are what torchvision documents; random ones draw other numbers, from the
seed of ``ms.set_seed`` and another stream in each worker. Of PIL pictures no operation of MindSpore
is used, so that workers can run them; tensors (..., C, H, W) are taken, too.

Source: the documentation of torchvision 0.28; torchvision/transforms/functional.py,
pytorch/vision 01175db1c2b1 of 2020, read (later releases round the border of CenterCrop, and so
does this). What is not random was compared with what torchvision 0.28.0 gave.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import zlib
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor
from PIL import Image, ImageOps

from mpcore_port_runtime.picture_tensors import (
    bordered,
    cropped,
    grey_of,
    in_the_middle,
    mirrored,
    resized,
    wanted_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "CenterCrop",
    "Compose",
    "Grayscale",
    "Lambda",
    "Normalize",
    "PILToTensor",
    "Pad",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToTensor",
]

_WAYS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "lanczos": Image.Resampling.LANCZOS,
}


class _Numbers:
    """Random numbers: begun anew with each seed, and apart in each process."""

    def __init__(self) -> None:
        self._owner: tuple[Any, ...] = ()
        self._made: Any = None

    def get(self) -> Any:
        """Return numpy's generator."""
        owner = (ms.get_seed(), os.getpid())
        if owner != self._owner:
            name = multiprocessing.current_process().name
            seed = None if owner[0] is None else [owner[0], zlib.crc32(name.encode())]
            self._owner, self._made = owner, np.random.default_rng(seed)
        return self._made


NUMBERS = _Numbers()


def _below(count: int) -> int:
    return int(NUMBERS.get().integers(count))


def picture_of(image: Any) -> Any:
    if not isinstance(image, Image.Image):
        msg = f"`image` must be a PIL picture, got {type(image).__name__}: put ToTensor last"
        raise TypeError(msg)
    return image


def way_of(interpolation: Any) -> Any:
    """Return PIL's way of resampling by torchvision's word, or by PIL's own number."""
    if interpolation in _WAYS:
        return _WAYS[interpolation]
    return Image.Resampling(interpolation)


def _pair(size: Any) -> tuple[int, int]:
    """Return (height, width)."""
    if isinstance(size, int):
        return size, size
    return (size[0], size[0]) if len(size) == 1 else (size[0], size[1])


class Compose:
    """Transforms one after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        """Run them all."""
        for transform in self.transforms:
            image = transform(image)
        return image


class Lambda:
    """A function as a transform."""

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        self.lambd = lambd

    def __call__(self, image: Any) -> Any:
        """Run it."""
        return self.lambd(image)


class PILToTensor:
    """A picture (or array H, W, C) as a tensor (C, H, W) of its dtype."""

    def __call__(self, image: Any) -> Any:
        """Return the tensor."""
        return Tensor(_channels(image))


def _channels(image: Any) -> Any:
    array = np.array(image)
    array = array[:, :, None] if array.ndim == 2 else array
    return np.ascontiguousarray(array.transpose(2, 0, 1))


class ToTensor:
    """A picture, or array (H, W, C), as a tensor (C, H, W); bytes become float32 in [0, 1]."""

    def __call__(self, image: Any) -> Any:
        """Return the tensor."""
        array = _channels(image)
        return Tensor(array.astype(np.float32) / 255 if array.dtype == np.uint8 else array)


class Normalize:
    """``(tensor - mean) / std`` by channel, of tensors (..., C, H, W)."""

    def __init__(self, mean: Any, std: Any, inplace: bool = False) -> None:
        self.mean, self.std = (np.asarray(x, np.float32).reshape(-1, 1, 1) for x in (mean, std))
        if (self.std == 0).any():
            msg = f"`std` must not hold 0, got {std!r}"
            raise ValueError(msg)

    def __call__(self, tensor: Any) -> Any:
        """Return another tensor, one that gradients go through where they are recorded."""
        if getattr(tensor, "_grad_node", None) is not None:
            low, wide = (Tensor(one).astype(tensor.dtype) for one in (self.mean, self.std))
            return (tensor - low) / wide
        array = tensor.asnumpy()
        return Tensor((array - self.mean.astype(array.dtype)) / self.std.astype(array.dtype))


class Resize:
    """A picture of another size; a number is that of the shorter side."""

    def __init__(
        self,
        size: Any,
        interpolation: Any = "bilinear",
        max_size: int | None = None,
        antialias: Any = True,
    ) -> None:
        self.size, self.way, self.max_size = size, way_of(interpolation), max_size
        self.antialias = antialias

    def __call__(self, image: Any) -> Any:
        """Return the resized picture."""
        if isinstance(image, Tensor):
            return _resized(image, self.size, self.max_size, self.way, self.antialias)
        width, height = picture_of(image).size
        if not isinstance(self.size, int) and len(self.size) == 2:
            return image.resize((self.size[1], self.size[0]), self.way)
        short = self.size if isinstance(self.size, int) else self.size[0]
        long = int(short * max(width, height) / min(width, height))
        if self.max_size is not None and long > self.max_size:
            short, long = int(self.max_size * short / long), self.max_size
        shape = (short, long) if width <= height else (long, short)
        return image if shape == (width, height) else image.resize(shape, self.way)


def _resized(x: Any, size: Any, max_size: int | None, way: Any, antialias: Any) -> Any:
    high, wide = x.shape[-2:]
    wanted = wanted_size(high, wide, size, max_size)
    if wanted == (high, wide):
        return x
    mode = next(word for word, one in _WAYS.items() if one == way)
    return resized(x, wanted, mode, antialias)


def _size(image: Any) -> tuple[int, int]:
    """Return (width, height) of a picture or tensor."""
    if isinstance(image, Tensor):
        return int(image.shape[-1]), int(image.shape[-2])
    wide, high = picture_of(image).size
    return wide, high


def _part(image: Any, left: int, top: int, width: int, height: int) -> Any:
    if isinstance(image, Tensor):
        return cropped(image, top, left, height, width)
    return image.crop((left, top, left + width, top + height))


class CenterCrop:
    """The middle of a picture, black where it is too small."""

    def __init__(self, size: Any) -> None:
        self.size = _pair(size)

    def __call__(self, image: Any) -> Any:
        """Return the part."""
        if isinstance(image, Tensor):
            return in_the_middle(image, self.size)
        (height, width), (wide, high) = self.size, picture_of(image).size
        left, top = _middle(wide, width), _middle(high, height)
        return image.crop((left, top, left + width, top + height))


def _middle(whole: int, part: int) -> int:
    return -((part - whole) // 2) if part > whole else round((whole - part) / 2)


class Pad:
    """A picture with a border: one width, two (left and right, top and bottom), or four."""

    def __init__(self, padding: Any, fill: Any = 0, padding_mode: Any = "constant") -> None:
        given = (padding,) if isinstance(padding, int) else tuple(padding)
        self.sides = {1: given * 4, 2: given * 2, 4: given}[len(given)]
        self.fill, self.mode = fill, padding_mode

    def __call__(self, image: Any) -> Any:
        """Return the larger picture."""
        left, top, right, bottom = self.sides
        if isinstance(image, Tensor):
            return bordered(image, self.sides, self.fill, self.mode)
        if self.mode == "constant":
            bands = len(picture_of(image).getbands())
            fill = self.fill if isinstance(self.fill, tuple) or bands == 1 else (self.fill,) * bands
            return ImageOps.expand(image, border=self.sides, fill=fill)
        array = np.array(picture_of(image))
        widths = ((top, bottom), (left, right), (0, 0))[: array.ndim]
        return Image.fromarray(np.pad(array, widths, mode=self.mode))


class RandomCrop:
    """A part of a picture, anywhere."""

    def __init__(
        self,
        size: Any,
        padding: Any = None,
        pad_if_needed: bool = False,
        fill: Any = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size, self.needed = _pair(size), pad_if_needed
        self.fill, self.mode = fill, padding_mode
        self.pad = None if padding is None else Pad(padding, fill, padding_mode)

    def __call__(self, image: Any) -> Any:
        """Return the part."""
        image = self.pad(image) if self.pad is not None else image
        (height, width), (wide, high) = self.size, _size(image)
        if self.needed and (wide < width or high < height):
            missing = max(0, width - wide), max(0, height - high)
            image = Pad(missing, self.fill, self.mode)(image)
            wide, high = _size(image)
        top, left, height, width = self.get_params(image, self.size)
        return _part(image, left, top, width, height)

    @staticmethod
    def get_params(img: Any, output_size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return where such a part begins, down and across, and its height and width.

        Raises:
            ValueError: the picture is smaller.
        """
        (height, width), (wide, high) = output_size, _size(img)
        if wide < width or high < height:
            msg = f"`size` must fit into the picture, got {(height, width)} for {(high, wide)}"
            raise ValueError(msg)
        return _below(high - height + 1), _below(wide - width + 1), height, width


class RandomHorizontalFlip:
    """The picture or its mirror image."""

    _flip, _axis = Image.Transpose.FLIP_LEFT_RIGHT, -1

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        """Return one of them."""
        flips = NUMBERS.get().random() < self.p
        if isinstance(image, Tensor):
            return mirrored(image, self._axis) if flips else image
        return picture_of(image).transpose(self._flip) if flips else image


class RandomVerticalFlip(RandomHorizontalFlip):
    """The picture, or upside down."""

    _flip, _axis = Image.Transpose.FLIP_TOP_BOTTOM, -2


class RandomResizedCrop:
    """A part of a picture of random size and shape, resized."""

    def __init__(
        self,
        size: Any,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: Any = "bilinear",
        antialias: Any = True,
    ) -> None:
        self.size, self.scale, self.ratio = _pair(size), scale, ratio
        self.way, self.antialias = way_of(interpolation), antialias

    def __call__(self, image: Any) -> Any:
        """Return the part."""
        top, left, height, width = self.get_params(image, self.scale, self.ratio)
        part = _part(image, left, top, width, height)
        if isinstance(part, Tensor):
            return _resized(part, self.size, None, self.way, self.antialias)
        return part.resize((self.size[1], self.size[0]), self.way)

    @staticmethod
    def get_params(
        img: Any, scale: tuple[float, float], ratio: tuple[float, float]
    ) -> tuple[int, int, int, int]:
        """Return where such a part begins, down and across, and its height and width."""
        wide, high = _size(img)
        for _ in range(10):
            area = wide * high * NUMBERS.get().uniform(*scale)
            shape = math.exp(NUMBERS.get().uniform(math.log(ratio[0]), math.log(ratio[1])))
            width, height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < width <= wide and 0 < height <= high:
                top = _below(high - height + 1)
                return top, _below(wide - width + 1), height, width
        width, height = wide, high
        if wide / high < min(ratio):
            height = round(wide / min(ratio))
        elif wide / high > max(ratio):
            width = round(high * max(ratio))
        return (high - height) // 2, (wide - width) // 2, height, width


class Grayscale:
    """A picture without colours, in one channel or three equal ones."""

    def __init__(self, num_output_channels: int = 1) -> None:
        self.channels = num_output_channels

    def __call__(self, image: Any) -> Any:
        """Return the picture."""
        if isinstance(image, Tensor):
            return grey_of(image, self.channels)
        grey = picture_of(image).convert("L")
        return grey if self.channels == 1 else Image.merge("RGB", (grey, grey, grey))
