"""Pictures of albumentations as tensors of MindSpore.

Source: albumentations 1.3.1 and 0.4.6, ``pytorch/transforms.py``. The package itself, whose
pictures are numpy's, is taken as it is installed: its ``Compose`` takes heirs of its own base.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import new_class
from typing import Any

import numpy as np
from mindspore import Tensor

__all__ = ["ToTensor", "ToTensorV2"]


def ToTensorV2(transpose_mask: bool = False, always_apply: bool = True, p: float = 1.0) -> Any:  # noqa: N802
    """Return the transform that makes (C, H, W) of a picture, and of masks what they are."""
    del always_apply, p
    return _class("ToTensorV2", _PicturesAndMasks)(transpose_mask)


def ToTensor(num_classes: int = 1, sigmoid: bool = True, normalize: Any = None) -> Any:  # noqa: N802
    """Return the transform of before: numbers of 0 to 1 of bytes, masks by classes."""
    return _class("ToTensor", _Fractions)(num_classes, sigmoid, normalize)


@cache
def _class(name: str, kind: type) -> Any:
    """Return an heir of albumentations' base: no other is taken into a ``Compose``."""
    base = import_module("albumentations.core.transforms_interface").BasicTransform

    return new_class(name, (kind, base))


class _Always:
    """A transform that is not drawn: each sample goes through it."""

    # Keys of a sample that are named so by ``additional_targets`` of a Compose, and their kind.
    _additional_targets: dict[str, str]

    def image(self, picture: np.ndarray[Any, Any]) -> Any:
        """Return the tensor of a picture."""
        raise NotImplementedError

    def mask(self, mask: np.ndarray[Any, Any]) -> Any:
        """Return the tensor of a mask."""
        raise NotImplementedError

    def __call__(self, *args: Any, force_apply: bool = False, **sample: Any) -> dict[str, Any]:
        """Return a sample whose pictures and masks are tensors; boxes and all else stay."""
        del args, force_apply
        made = self.targets
        kinds = {
            **{kind: kind for kind in made},
            **(getattr(self, "_additional_targets", None) or {}),
        }
        return {
            key: made[kinds[key]](one) if kinds.get(key) in made and one is not None else one
            for key, one in sample.items()
        }

    @property
    def targets(self) -> dict[str, Any]:
        """Return what each kind of a sample's values goes through."""
        return {"image": self.image, "mask": self.mask, "masks": self._each}

    def _each(self, masks: Any) -> list[Any]:
        return [self.mask(one) for one in masks]


class _PicturesAndMasks(_Always):
    """What ToTensorV2 does."""

    def __init__(self, transpose_mask: bool) -> None:
        super().__init__(p=1.0)  # type: ignore[call-arg]  # of albumentations' base
        self.transpose_mask = transpose_mask

    def image(self, picture: np.ndarray[Any, Any]) -> Any:
        """Return (C, H, W), of the picture's own dtype."""
        if picture.ndim not in (2, 3):
            msg = "Albumentations only supports images in HW or HWC format"
            raise ValueError(msg)
        if picture.ndim == 2:
            picture = picture[:, :, None]
        return Tensor(np.ascontiguousarray(picture.transpose(2, 0, 1)))

    def mask(self, mask: np.ndarray[Any, Any]) -> Any:
        """Return a mask as it is, or with its channels in front."""
        if self.transpose_mask and mask.ndim == 3:
            mask = mask.transpose(2, 0, 1)
        return Tensor(np.ascontiguousarray(mask))


class _Fractions(_Always):
    """What ToTensor did."""

    def __init__(self, num_classes: int, sigmoid: bool, normalize: Any) -> None:
        super().__init__(p=1.0)  # type: ignore[call-arg]  # of albumentations' base
        self.num_classes, self.sigmoid, self.normalize = num_classes, sigmoid, normalize

    def image(self, picture: np.ndarray[Any, Any]) -> Any:
        """Return (C, H, W) of float32, less the mean and by the deviation where they are said."""
        made = np.moveaxis(_fraction(picture), -1, 0).astype(np.float32)
        if self.normalize is not None:
            mean, std = (
                np.asarray(self.normalize[name], np.float32)[:, None, None]
                for name in ("mean", "std")
            )
            made = (made - mean) / std
        return Tensor(np.ascontiguousarray(made))

    def mask(self, mask: np.ndarray[Any, Any]) -> Any:
        """Return the classes of a mask, each a plane where ``sigmoid`` says so."""
        if self.num_classes > 1 and not self.sigmoid:
            return Tensor(_classes(mask))
        if self.num_classes > 1:
            made = np.moveaxis(_fraction(mask), -1, 0)
        else:
            made = _fraction(mask)[None]
        return Tensor(np.ascontiguousarray(made.astype(np.float32)))


def _fraction(picture: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return bytes as parts of 255, in float64 as albumentations divides; other numbers stay."""
    return picture / (255.0 if picture.dtype == np.uint8 else 1)


def _classes(mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the last plane above 0 of each place; of one plane 1 where it is above 127."""
    made = np.zeros(mask.shape[:2], np.int64)
    if mask.ndim == 3:
        for plane in range(mask.shape[2]):
            made[mask[..., plane] > 0] = plane
    else:
        made[mask > 127] = 1
    return made
