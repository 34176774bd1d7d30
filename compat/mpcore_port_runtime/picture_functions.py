"""torchvision.transforms.functional: pictures of PIL by PIL, tensors (..., C, H, W) by MindSpore.

Source: torchvision 0.28.0 ``transforms/functional.py``, ``_functional_pil.py`` and
``_functional_tensor.py``; compared with what they gave.
"""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from PIL import Image, ImageEnhance, ImageOps

from mpcore_port_runtime.augment import ToPILImage, jittered
from mpcore_port_runtime.picture_tensors import (
    bell,
    cropped,
    is_floats,
    mirrored,
    padded,
    pair_of,
    white,
)
from mpcore_port_runtime.vision import (
    CenterCrop,
    Grayscale,
    Normalize,
    Pad,
    PILToTensor,
    Resize,
    ToTensor,
    picture_of,
    way_of,
)
from mpcore_port_runtime.warps import filled, warped

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_gamma",
    "adjust_hue",
    "adjust_saturation",
    "adjust_sharpness",
    "affine",
    "autocontrast",
    "center_crop",
    "convert_image_dtype",
    "crop",
    "equalize",
    "erase",
    "five_crop",
    "gaussian_blur",
    "get_dimensions",
    "get_image_num_channels",
    "get_image_size",
    "hflip",
    "invert",
    "is_pil_image",
    "normalize",
    "pad",
    "perspective",
    "pil_to_tensor",
    "posterize",
    "resize",
    "resized_crop",
    "rgb_to_grayscale",
    "rotate",
    "solarize",
    "ten_crop",
    "to_grayscale",
    "to_pil_image",
    "to_tensor",
    "vflip",
]


def is_pil_image(img: Any) -> bool:
    """Return whether this is a picture of PIL."""
    return isinstance(img, Image.Image)


def _only_pictures(img: Any, name: str) -> Any:
    if isinstance(img, Tensor):
        msg = f"`{name}` is ported for pictures of PIL, got a tensor: call it before ToTensor"
        raise NotImplementedError(msg)
    return picture_of(img)


# --- sizes ---------------------------------------------------------------------------------------


def get_dimensions(img: Any) -> list[int]:
    """Return [channels, height, width]."""
    if isinstance(img, Tensor):
        bands = 1 if img.ndim == 2 else img.shape[-3]
        return [int(bands), int(img.shape[-2]), int(img.shape[-1])]
    wide, high = picture_of(img).size
    return [len(img.getbands()), high, wide]


def get_image_size(img: Any) -> list[int]:
    """Return [width, height]."""
    _, high, wide = get_dimensions(img)
    return [wide, high]


def get_image_num_channels(img: Any) -> int:
    """Return how many channels there are."""
    return get_dimensions(img)[0]


def resize(
    img: Any,
    size: Any,
    interpolation: Any = "bilinear",
    max_size: int | None = None,
    antialias: bool | None = True,
) -> Any:
    """Return the picture in another size; a number is that of the shorter side."""
    return Resize(size, interpolation, max_size, antialias)(img)


# --- parts ---------------------------------------------------------------------------------------


def crop(img: Any, top: int, left: int, height: int, width: int) -> Any:
    """Return a part, black where it is outside of the picture."""
    if isinstance(img, Tensor):
        return cropped(img, top, left, height, width)
    return picture_of(img).crop((left, top, left + width, top + height))


def center_crop(img: Any, output_size: Any) -> Any:
    """Return the middle, black where the picture is too small."""
    return CenterCrop(output_size)(img)


def resized_crop(
    img: Any,
    top: int,
    left: int,
    height: int,
    width: int,
    size: Any,
    interpolation: Any = "bilinear",
    antialias: bool | None = True,
) -> Any:
    """Return a part in another size."""
    return resize(crop(img, top, left, height, width), size, interpolation, antialias=antialias)


def five_crop(img: Any, size: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return the four corners and the middle."""
    height, width = pair_of(size)
    wide, high = get_image_size(img)
    if width > wide or height > high:
        msg = f"`size` must fit into the picture, got {size!r} for {(high, wide)}"
        raise ValueError(msg)
    corners = [(0, 0), (0, wide - width), (high - height, 0), (high - height, wide - width)]
    parts = [crop(img, top, left, height, width) for top, left in corners]
    return (parts[0], parts[1], parts[2], parts[3], center_crop(img, [height, width]))


def ten_crop(img: Any, size: Any, vertical_flip: bool = False) -> tuple[Any, ...]:
    """Return the corners and the middle, of the picture and of its mirror image."""
    other = vflip(img) if vertical_flip else hflip(img)
    return (*five_crop(img, size), *five_crop(other, size))


def pad(img: Any, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> Any:
    """Return the picture with a border."""
    return Pad(padding, fill, padding_mode)(img)


def hflip(img: Any) -> Any:
    """Return the mirror image."""
    if isinstance(img, Tensor):
        return mirrored(img)
    return picture_of(img).transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def vflip(img: Any) -> Any:
    """Return the picture upside down."""
    if isinstance(img, Tensor):
        return mirrored(img, -2)
    return picture_of(img).transpose(Image.Transpose.FLIP_TOP_BOTTOM)


def erase(img: Any, i: int, j: int, h: int, w: int, v: Any, inplace: bool = False) -> Any:
    """Return a tensor with a part of it covered by ``v``."""
    if not isinstance(img, Tensor) or inplace:
        msg = "`erase` is ported for tensors, and gives another one: leave `inplace` out"
        raise NotImplementedError(msg)
    inside = np.zeros(img.shape[-2:], bool)
    inside[i : i + h, j : j + w] = True
    cover = v if isinstance(v, Tensor) else Tensor(np.asarray(v, np.float32))
    if cover.ndim == 3 and tuple(cover.shape[-2:]) == (h, w) and (h, w) != (1, 1):
        wide, high = get_image_size(img)
        cover = padded(cover, (j, wide - j - w, i, high - i - h), 0.0)
    return ops.where(Tensor(inside), cover.astype(img.dtype), img)


# --- turned --------------------------------------------------------------------------------------


def rotate(
    img: Any,
    angle: float,
    interpolation: Any = "nearest",
    expand: bool = False,
    center: Any = None,
    fill: Any = None,
) -> Any:
    """Return a picture of PIL that is turned about its middle."""
    image = _only_pictures(img, "rotate")
    colour = filled(image, 0 if fill is None else fill)
    return image.rotate(angle, way_of(interpolation), expand, center, fillcolor=colour)


def affine(
    img: Any,
    angle: float,
    translate: Sequence[int],
    scale: float,
    shear: Any,
    interpolation: Any = "nearest",
    fill: Any = None,
    center: Any = None,
) -> Any:
    """Return a picture of PIL that is turned, moved, scaled and sheared."""
    image = _only_pictures(img, "affine")
    lean = (shear, 0.0) if isinstance(shear, numbers.Number) else tuple(shear)
    lean = lean * 2 if len(lean) == 1 else lean
    way, colour = way_of(interpolation), 0 if fill is None else fill
    return warped(image, angle, translate, scale, lean, way, colour, center)


def perspective(
    img: Any,
    startpoints: Sequence[Sequence[int]],
    endpoints: Sequence[Sequence[int]],
    interpolation: Any = "bilinear",
    fill: Any = None,
) -> Any:
    """Return a picture of PIL as it is seen from elsewhere."""
    image = _only_pictures(img, "perspective")
    rows, wanted = [], []
    for (x, y), (u, v) in zip(endpoints, startpoints, strict=True):
        rows.append([x, y, 1, 0, 0, 0, -u * x, -u * y])
        rows.append([0, 0, 0, x, y, 1, -v * x, -v * y])
        wanted += [u, v]
    found = np.linalg.lstsq(np.array(rows, float), np.array(wanted, float), rcond=None)[0]
    matrix = [float(one) for one in found.astype(np.float32)]
    to, way = Image.Transform.PERSPECTIVE, way_of(interpolation)
    colour = filled(image, 0 if fill is None else fill)
    return image.transform(image.size, to, matrix, way, fillcolor=colour)


# --- colours -------------------------------------------------------------------------------------


def adjust_brightness(img: Any, brightness_factor: float) -> Any:
    """Return the picture darker or brighter; 1 changes nothing."""
    return jittered(img, "brightness", brightness_factor)


def adjust_contrast(img: Any, contrast_factor: float) -> Any:
    """Return the picture with less or more contrast; 1 changes nothing."""
    return jittered(img, "contrast", contrast_factor)


def adjust_saturation(img: Any, saturation_factor: float) -> Any:
    """Return the picture with less or more colour; 1 changes nothing."""
    return jittered(img, "saturation", saturation_factor)


def adjust_hue(img: Any, hue_factor: float) -> Any:
    """Return a picture of PIL in other hues; 0 changes nothing."""
    if not -0.5 <= hue_factor <= 0.5:
        msg = f"`hue_factor` must be in [-0.5, 0.5], got {hue_factor}"
        raise ValueError(msg)
    return jittered(_only_pictures(img, "adjust_hue"), "hue", hue_factor)


def adjust_gamma(img: Any, gamma: float, gain: float = 1) -> Any:
    """Return ``gain * picture ** gamma``, of values in [0, 1]."""
    if gamma < 0:
        msg = f"`gamma` must not be negative, got {gamma}"
        raise ValueError(msg)
    if isinstance(img, Tensor):
        values = convert_image_dtype(img, ms.float32)
        made = (gain * ops.pow(values, gamma)).clip(0, 1)
        return convert_image_dtype(made, img.dtype)
    mode = picture_of(img).mode
    table = [int((255 + 1 - 1e-3) * gain * pow(place / 255.0, gamma)) for place in range(256)]
    return img.convert("RGB").point(table * 3).convert(mode)


def adjust_sharpness(img: Any, sharpness_factor: float) -> Any:
    """Return a picture of PIL, blurred or sharper; 1 changes nothing."""
    return ImageEnhance.Sharpness(_only_pictures(img, "adjust_sharpness")).enhance(sharpness_factor)


def rgb_to_grayscale(img: Any, num_output_channels: int = 1) -> Any:
    """Return the picture without colours, in one channel or three equal ones."""
    return Grayscale(num_output_channels)(img)


def to_grayscale(img: Any, num_output_channels: int = 1) -> Any:
    """Return a picture of PIL without colours."""
    return Grayscale(num_output_channels)(_only_pictures(img, "to_grayscale"))


def invert(img: Any) -> Any:
    """Return the negative."""
    if isinstance(img, Tensor):
        return white(img) - img if white(img) == 1.0 else 255 - img
    return ImageOps.invert(picture_of(img))


def posterize(img: Any, bits: int) -> Any:
    """Return a picture of PIL with fewer bits for each value."""
    return ImageOps.posterize(_only_pictures(img, "posterize"), bits)


def solarize(img: Any, threshold: float) -> Any:
    """Return the picture with all values from a threshold on inverted."""
    if isinstance(img, Tensor):
        return ops.where(img >= threshold, invert(img), img)
    return ImageOps.solarize(picture_of(img), threshold)  # type: ignore[arg-type]


def autocontrast(img: Any) -> Any:
    """Return a picture of PIL from black to white."""
    return ImageOps.autocontrast(_only_pictures(img, "autocontrast"))


def equalize(img: Any) -> Any:
    """Return a picture of PIL whose values are spread evenly."""
    return ImageOps.equalize(_only_pictures(img, "equalize"))


def gaussian_blur(img: Any, kernel_size: Any, sigma: Any = None) -> Any:
    """Return the picture blurred; borders are reflected."""
    sizes = [int(kernel_size)] * 2 if isinstance(kernel_size, int) else list(kernel_size)
    sizes = sizes * 2 if len(sizes) == 1 else sizes
    if sigma is None:
        sigma = [one * 0.15 + 0.35 for one in sizes]
    widths = [float(sigma)] * 2 if isinstance(sigma, (int, float)) else [float(s) for s in sigma]
    widths = widths * 2 if len(widths) == 1 else widths
    if any(one % 2 == 0 or one <= 0 for one in sizes) or any(one <= 0 for one in widths):
        msg = f"`kernel_size` must be odd, `sigma` positive, got {kernel_size!r} and {sigma!r}"
        raise ValueError(msg)
    if isinstance(img, Tensor):
        return _blurred(img, sizes, widths)
    mode = picture_of(img).mode
    return to_pil_image(_blurred(pil_to_tensor(img), sizes, widths), mode=mode)


def _blurred(x: Any, sizes: Sequence[int], widths: Sequence[float]) -> Any:
    across, down = (bell(n, s) for n, s in zip(sizes, widths, strict=True))
    kernel = Tensor(np.outer(down, across).astype(np.float32))[None, None]
    border = [sizes[0] // 2, sizes[1] // 2]
    made = x.astype(ms.float32).reshape(-1, 1, *x.shape[-2:])
    made = pad(made, border, padding_mode="reflect")
    made = ops.conv2d(made, kernel).reshape(x.shape)
    return made.astype(x.dtype) if is_floats(x) else ops.round(made).astype(x.dtype)


# --- kinds ---------------------------------------------------------------------------------------


def to_tensor(pic: Any) -> Any:
    """Return a picture, or array (H, W, C), as a tensor; bytes are in [0, 1] then."""
    return ToTensor()(pic)


def pil_to_tensor(pic: Any) -> Any:
    """Return a picture as a tensor of its dtype."""
    return PILToTensor()(picture_of(pic))


def to_pil_image(pic: Any, mode: str | None = None) -> Any:
    """Return a tensor, or array (H, W, C), as a picture."""
    return ToPILImage(mode)(pic)


def normalize(tensor: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
    """Return ``(tensor - mean) / std`` by channel."""
    if inplace:
        msg = "`inplace` of normalize: another tensor is given; leave it out"
        raise NotImplementedError(msg)
    if not is_floats(tensor):
        msg = f"`tensor` must hold floats, got {tensor.dtype}"
        raise TypeError(msg)
    held = Normalize(mean, std)
    low, wide = (Tensor(one).astype(tensor.dtype) for one in (held.mean, held.std))
    return (tensor - low) / wide


def convert_image_dtype(image: Any, dtype: Any = ms.float32) -> Any:
    """Return a tensor of another dtype, in whose range white is."""
    floats = (ms.float16, ms.float32, ms.float64)
    if image.dtype == dtype:
        return image
    if image.dtype in floats and dtype in floats:
        return image.astype(dtype)
    if image.dtype in floats:
        most = (
            255
            if dtype == ms.uint8
            else 2 ** (8 * np.dtype(ms.dtype_to_nptype(dtype)).itemsize - 1) - 1
        )
        return ops.floor(image * (most + 1.0 - 1e-3)).astype(dtype)
    if image.dtype == ms.uint8 and dtype in floats:
        return image.astype(dtype) / 255
    msg = f"{image.dtype} to {dtype} is not ported"
    raise NotImplementedError(msg)
