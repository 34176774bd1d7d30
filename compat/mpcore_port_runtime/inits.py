"""torch.nn.init's functions with torch's arguments, for where a script hands them on.

They draw other random numbers of the same distribution.
"""

from __future__ import annotations

import math
from typing import Any

from mindspore.common.initializer import (
    Constant,
    Dirac,
    HeNormal,
    HeUniform,
    Identity,
    Normal,
    Orthogonal,
    TruncatedNormal,
    XavierNormal,
    XavierUniform,
)

from mpcore_port_runtime.modules import fill, fill_uniform

__all__ = [
    "constant_",
    "correct_fan",
    "dirac_",
    "eye_",
    "fans",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

_LEAKY = "leaky_relu"
_MODES = ("fan_in", "fan_out")


def fans(tensor: Any) -> tuple[int, int]:
    """Return how many numbers one output is made of, and how many one input goes into.

    Source: torch/nn/init.py (_calculate_fan_in_and_fan_out), torch 2.13.0.
    """
    shape = tuple(tensor.shape)
    if len(shape) < len(_MODES):
        msg = "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions"
        raise ValueError(msg)  # torch's words
    places = math.prod(shape[2:])
    return shape[1] * places, shape[0] * places


def correct_fan(tensor: Any, mode: str) -> int:
    """Return the one of both that ``mode`` names, as torch's _calculate_correct_fan."""
    if mode.lower() not in _MODES:
        msg = f"`mode` must be one of {_MODES}, got {mode!r}"
        raise ValueError(msg)
    return fans(tensor)[_MODES.index(mode.lower())]


def constant_(tensor: Any, val: float) -> Any:
    """Give a Parameter one value."""
    return fill(tensor, Constant(val))


def zeros_(tensor: Any) -> Any:
    """Give a Parameter zeros."""
    return fill(tensor, Constant(0.0))


def ones_(tensor: Any) -> Any:
    """Give a Parameter ones."""
    return fill(tensor, Constant(1.0))


def eye_(tensor: Any) -> Any:
    """Give a Parameter of two axes ones along its diagonal, and zeros."""
    return fill(tensor, Identity())


def dirac_(tensor: Any, groups: int = 1) -> Any:
    """Give the weight of a convolution what lets each group's channels pass as they are."""
    return fill(tensor, Dirac(groups))


def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Any:
    """Give a Parameter normal values."""
    del generator
    return fill(tensor, Normal(std, mean))


def trunc_normal_(
    tensor: Any,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Any = None,
) -> Any:
    """Give a Parameter normal values within bounds."""
    del generator
    return fill(tensor, TruncatedNormal(std, mean, a, b))


def uniform_(tensor: Any, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Any:
    """Give a Parameter uniform values."""
    del generator
    return fill_uniform(tensor, a, b)


def xavier_uniform_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Give a Parameter uniform values by the sizes of both its sides."""
    del generator
    return fill(tensor, XavierUniform(gain))


def xavier_normal_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Give a Parameter normal values by the sizes of both its sides."""
    del generator
    return fill(tensor, XavierNormal(gain))


def kaiming_uniform_(
    tensor: Any,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = _LEAKY,
    generator: Any = None,
) -> Any:
    """Give a Parameter uniform values by the size of one side and what follows."""
    del generator
    return fill(tensor, HeUniform(a, mode, nonlinearity))


def kaiming_normal_(
    tensor: Any,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = _LEAKY,
    generator: Any = None,
) -> Any:
    """Give a Parameter normal values by the size of one side and what follows."""
    del generator
    return fill(tensor, HeNormal(a, mode, nonlinearity))


def orthogonal_(tensor: Any, gain: float = 1, generator: Any = None) -> Any:
    """Give a Parameter a matrix of orthogonal rows or columns."""
    del generator
    return fill(tensor, Orthogonal(gain))
