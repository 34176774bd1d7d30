"""timm's RandAugment, drawn from Python's and numpy's numbers in timm's order.

Source: timm 1.0.31 ``data/auto_augment.py``. Compared with the pictures that it gave. Sets of
operations by names of their own ("3a", "weights"), AutoAugment and AugMix are not here.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["rand_augment_transform"]

_MOST = 10.0
_GREY = (128, 128, 128)
_WAYS = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)


def _signed(value: float) -> float:
    return -value if random.random() > 0.5 else value


def _moved(image: Any, matrix: tuple[float, ...], look: dict[str, Any]) -> Any:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, **_drawn(look))


def _drawn(look: dict[str, Any]) -> dict[str, Any]:
    ways = look["resample"]
    way = random.choice(ways) if isinstance(ways, list | tuple) else ways
    return {"fillcolor": look["fillcolor"], "resample": way}


def _rotate(image: Any, level: float, look: dict[str, Any]) -> Any:
    degrees = _signed(level * 30.0)
    return image.rotate(degrees, **_drawn(look))


def _shear_x(image: Any, level: float, look: dict[str, Any]) -> Any:
    return _moved(image, (1, _signed(level * 0.3), 0, 0, 1, 0), look)


def _shear_y(image: Any, level: float, look: dict[str, Any]) -> Any:
    return _moved(image, (1, 0, 0, _signed(level * 0.3), 1, 0), look)


def _shift_x(image: Any, level: float, look: dict[str, Any]) -> Any:
    return _moved(image, (1, 0, _signed(level * 0.45) * image.size[0], 0, 1, 0), look)


def _shift_y(image: Any, level: float, look: dict[str, Any]) -> Any:
    return _moved(image, (1, 0, 0, 0, 1, _signed(level * 0.45) * image.size[1]), look)


def _bits(image: Any, kept: int) -> Any:
    if kept == 0:  # black, as Pillow had it; later ones raise
        return image.point([0] * 256 * len(image.getbands()))
    return image if kept >= 8 else ImageOps.posterize(image, kept)


def _solarize_add(image: Any, level: float, _: Any) -> Any:
    more = min(128, int(level * 110))
    table = [min(255, value + more) if value < 128 else value for value in range(256)]
    return image.point(table * len(image.getbands())) if image.mode in ("L", "RGB") else image


def _enhanced(kind: Any, grows: bool) -> Callable[[Any, float, Any], Any]:
    def run(image: Any, level: float, _: Any) -> Any:
        factor = max(0.1, 1.0 + _signed(level * 0.9)) if grows else level * 1.8 + 0.1
        return kind(image).enhance(factor)

    return run


def _operations(grows: bool) -> list[Callable[[Any, float, dict[str, Any]], Any]]:
    """Return the operations in timm's order; they grow with the magnitude, or as papers had it."""
    kinds = ("Color", "Contrast", "Brightness", "Sharpness")
    return [
        lambda image, _, __: ImageOps.autocontrast(image),
        lambda image, _, __: ImageOps.equalize(image),
        lambda image, _, __: ImageOps.invert(image),
        _rotate,
        lambda image, level, _: _bits(image, 4 - int(level * 4) if grows else int(level * 4)),
        lambda image, level, _: ImageOps.solarize(
            image, 256 - min(256, int(level * 256)) if grows else min(256, int(level * 256))
        ),
        _solarize_add,
        *(_enhanced(getattr(ImageEnhance, kind), grows) for kind in kinds),
        _shear_x,
        _shear_y,
        _shift_x,
        _shift_y,
    ]


class _RandAugment:
    """Several operations, drawn anew for each picture."""

    def __init__(self, told: dict[str, float], look: dict[str, Any]) -> None:
        self.operations = _operations(bool(told["inc"]))
        self.told, self.look = told, look

    def __call__(self, image: Any) -> Any:
        for place in np.random.choice(len(self.operations), int(self.told["n"])):  # noqa: NPY002
            if self.told["p"] < 1.0 and random.random() > self.told["p"]:
                continue
            image = self.operations[place](image, self._level() / _MOST, self.look)
        return image

    def _level(self) -> float:
        level, spread = self.told["m"], self.told["mstd"]
        if spread > 100:
            level = random.uniform(0, level)
        elif spread > 0:
            level = random.gauss(level, spread)
        return max(0.0, min(level, self.told["mmax"] or _MOST))


def rand_augment_transform(config_str: str, hparams: dict[str, Any] | None = None) -> Any:
    """Return timm.data.rand_augment_transform of words such as "rand-m9-mstd0.5-inc1".

    Raises:
        NotImplementedError: they are of another kind, or name a set of operations.
    """
    kind, *words = config_str.split("-")
    if kind != "rand" or any(word.startswith("t") for word in words):
        msg = f"{config_str!r} is not ported: of timm's augmentations 'rand-m9-mstd0.5-inc1' is"
        raise NotImplementedError(msg)
    told: dict[str, float] = {"m": 10, "n": 2, "p": 0.5, "mstd": 0, "mmax": 0, "inc": 0}
    for word in words:
        name, *rest = re.split(r"(\d.*)", word)
        if not rest:
            continue
        if name not in told:
            msg = f"unknown RandAugment config section {word!r}"
            raise AssertionError(msg)
        told[name] = float(rest[0]) if name in ("mstd", "p") else int(rest[0])
    given = hparams or {}
    look = {
        "fillcolor": given.get("img_mean", _GREY),
        "resample": given.get("interpolation", _WAYS),
    }
    return _RandAugment(told, look)
