"""What ``from torchvision.transforms import *`` brings, as far as ports have it."""

from __future__ import annotations

from mpcore_port_runtime.augment import (
    ColorJitter,
    RandomApply,
    RandomChoice,
    RandomGrayscale,
    ToPILImage,
)
from mpcore_port_runtime.vision import (
    CenterCrop,
    Compose,
    Grayscale,
    Lambda,
    Normalize,
    Pad,
    PILToTensor,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToTensor,
)
from mpcore_port_runtime.warps import RandomAffine, RandomErasing, RandomRotation

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Grayscale",
    "Lambda",
    "Normalize",
    "PILToTensor",
    "Pad",
    "RandomAffine",
    "RandomApply",
    "RandomChoice",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Resize",
    "ToPILImage",
    "ToTensor",
]
