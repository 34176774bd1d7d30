"""More of torchvision's random transforms: blurred, inverted, seen from elsewhere, or by policy.

Their random numbers are others; what is done with them was compared with torchvision's.

Source: torchvision 0.28.0 ``transforms/transforms.py``, ``transforms/autoaugment.py``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore_port_runtime import picture_functions as functions
from mpcore_port_runtime.vision import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "ConvertImageDtype",
    "FiveCrop",
    "GaussianBlur",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomInvert",
    "RandomOrder",
    "RandomPerspective",
    "RandomPosterize",
    "RandomSolarize",
    "TenCrop",
    "TrivialAugmentWide",
]


class GaussianBlur:
    """A picture, blurred by as much as is drawn."""

    def __init__(self, kernel_size: Any, sigma: Any = (0.1, 2.0)) -> None:
        self.kernel_size = kernel_size
        self.sigma = (sigma, sigma) if isinstance(sigma, (int, float)) else tuple(sigma)

    def __call__(self, image: Any) -> Any:
        """Return the blurred picture."""
        sigma = float(NUMBERS.get().uniform(*self.sigma))
        return functions.gaussian_blur(image, self.kernel_size, [sigma, sigma])


class _Perhaps:
    """A function of a picture, or the picture as it is."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        """Return one of them."""
        return self._changed(image) if NUMBERS.get().random() < self.p else image

    def _changed(self, image: Any) -> Any:
        raise NotImplementedError


class RandomInvert(_Perhaps):
    """The negative, or the picture."""

    def _changed(self, image: Any) -> Any:
        return functions.invert(image)


class RandomAutocontrast(_Perhaps):
    """The picture from black to white, or as it is."""

    def _changed(self, image: Any) -> Any:
        return functions.autocontrast(image)


class RandomEqualize(_Perhaps):
    """The picture with its values spread evenly, or as it is."""

    def _changed(self, image: Any) -> Any:
        return functions.equalize(image)


class RandomPosterize(_Perhaps):
    """The picture with fewer bits, or as it is."""

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(p)
        self.bits = bits

    def _changed(self, image: Any) -> Any:
        return functions.posterize(image, self.bits)


class RandomSolarize(_Perhaps):
    """The picture with its bright values inverted, or as it is."""

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.threshold = threshold

    def _changed(self, image: Any) -> Any:
        return functions.solarize(image, self.threshold)


class RandomAdjustSharpness(_Perhaps):
    """The picture blurred or sharper, or as it is."""

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.sharpness_factor = sharpness_factor

    def _changed(self, image: Any) -> Any:
        return functions.adjust_sharpness(image, self.sharpness_factor)


class RandomPerspective(_Perhaps):
    """The picture as it is seen from elsewhere, or as it is."""

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        interpolation: Any = "bilinear",
        fill: Any = 0,
    ) -> None:
        super().__init__(p)
        self.distortion_scale, self.interpolation, self.fill = distortion_scale, interpolation, fill

    def _changed(self, image: Any) -> Any:
        _, height, width = functions.get_dimensions(image)
        far_x, far_y = (int(self.distortion_scale * (one // 2)) + 1 for one in (width, height))
        near = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
        draws = NUMBERS.get()
        ends = []
        for x, y in near:
            moved = int(draws.integers(far_x)), int(draws.integers(far_y))
            ends.append([abs(x - moved[0]), abs(y - moved[1])])
        return functions.perspective(image, near, ends, self.interpolation, self.fill)


class RandomOrder:
    """Transforms one after the other, in an order that is drawn."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        """Run them all."""
        for place in NUMBERS.get().permutation(len(self.transforms)):
            image = self.transforms[place](image)
        return image


class FiveCrop:
    """The four corners and the middle of a picture."""

    def __init__(self, size: Any) -> None:
        self.size = size

    def __call__(self, image: Any) -> Any:
        """Return five pictures."""
        return functions.five_crop(image, self.size)


class TenCrop:
    """The corners and the middle, of a picture and of its mirror image."""

    def __init__(self, size: Any, vertical_flip: bool = False) -> None:
        self.size, self.vertical_flip = size, vertical_flip

    def __call__(self, image: Any) -> Any:
        """Return ten pictures."""
        return functions.ten_crop(image, self.size, self.vertical_flip)


class ConvertImageDtype:
    """A tensor of another dtype, in whose range white is."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def __call__(self, image: Any) -> Any:
        """Return the tensor."""
        return functions.convert_image_dtype(image, self.dtype)


# --- by policy -----------------------------------------------------------------------------------

_Space = dict[str, tuple[Any, bool]]


def _space(bins: int, size: tuple[int, int], *, wide: bool) -> _Space:
    """Return how far each operation may go, and whether it goes either way."""
    lean, turn, colour, bits = (0.99, 135.0, 0.99, 6) if wide else (0.3, 30.0, 0.9, 4)
    across, down = (32.0, 32.0) if wide else tuple(150.0 / 331.0 * one for one in reversed(size))
    fewer = 8 - np.round(np.arange(bins) / ((bins - 1) / bits)).astype(int)
    either = {"ShearX": lean, "ShearY": lean, "TranslateX": across, "TranslateY": down}
    either |= {"Rotate": turn, "Brightness": colour, "Color": colour, "Contrast": colour}
    found: _Space = {"Identity": (None, False)}
    found |= {name: (np.linspace(0, most, bins), True) for name, most in either.items()}
    found |= {"Sharpness": (np.linspace(0, colour, bins), True), "Posterize": (fewer, False)}
    found |= {"Solarize": (np.linspace(255.0, 0.0, bins), False)}
    return found | {"AutoContrast": (None, False), "Equalize": (None, False)}


def applied(image: Any, name: str, far: float, interpolation: Any, fill: Any) -> Any:
    """Return a picture of PIL that one operation of a policy has changed."""
    sheared = math.degrees(math.atan(far))
    moves: dict[str, tuple[list[int], list[float]]] = {
        "ShearX": ([0, 0], [sheared, 0.0]),
        "ShearY": ([0, 0], [0.0, sheared]),
        "TranslateX": ([int(far), 0], [0.0, 0.0]),
        "TranslateY": ([0, int(far)], [0.0, 0.0]),
    }
    if name in moves:
        by, lean = moves[name]
        center = [0, 0] if name.startswith("Shear") else None
        return functions.affine(image, 0.0, by, 1.0, lean, interpolation, fill, center)
    act: dict[str, Callable[[], Any]] = {
        "Rotate": lambda: functions.rotate(image, far, interpolation, fill=fill),
        "Brightness": lambda: functions.adjust_brightness(image, 1.0 + far),
        "Color": lambda: functions.adjust_saturation(image, 1.0 + far),
        "Contrast": lambda: functions.adjust_contrast(image, 1.0 + far),
        "Sharpness": lambda: functions.adjust_sharpness(image, 1.0 + far),
        "Posterize": lambda: functions.posterize(image, int(far)),
        "Solarize": lambda: functions.solarize(image, far),
        "AutoContrast": lambda: functions.autocontrast(image),
        "Equalize": lambda: functions.equalize(image),
        "Identity": lambda: image,
    }
    return act[name]()


class RandAugment:
    """Some operations on a picture of PIL, all of one strength."""

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: Any = None,
    ) -> None:
        self.num_ops, self.magnitude, self.bins = num_ops, magnitude, num_magnitude_bins
        self.interpolation, self.fill = interpolation, fill

    def __call__(self, image: Any) -> Any:
        """Return another picture."""
        _, height, width = functions.get_dimensions(image)
        for _ in range(self.num_ops):
            space = _space(self.bins, (height, width), wide=False)
            image = self._one(image, space, self.magnitude)
        return image

    def _one(self, image: Any, space: _Space, strength: int) -> Any:
        draws = NUMBERS.get()
        name = list(space)[int(draws.integers(len(space)))]
        rows, either = space[name]
        far = 0.0 if rows is None else float(rows[strength])
        if either and draws.integers(2):
            far *= -1.0
        return applied(image, name, far, self.interpolation, self.fill)


class TrivialAugmentWide(RandAugment):
    """One operation on a picture of PIL, of a strength that is drawn."""

    def __init__(
        self, num_magnitude_bins: int = 31, interpolation: Any = "nearest", fill: Any = None
    ) -> None:
        super().__init__(1, 0, num_magnitude_bins, interpolation, fill)

    def __call__(self, image: Any) -> Any:
        """Return another picture."""
        _, height, width = functions.get_dimensions(image)
        space = _space(self.bins, (height, width), wide=True)
        return self._one(image, space, int(NUMBERS.get().integers(self.bins)))
