"""Floating-point formats: names, range and spacing, and rounding to them in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mpcore.errors import check_choice

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ALIASES", "FORMATS", "Format", "dtype_of", "is_low", "parse_dtype", "round_to"]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Attributes:
        name: canonical name, as the frameworks spell it.
        bits: storage, in bits.
        max: largest finite value, dimensionless.
        smallest_normal: smallest value with full precision.
        smallest_subnormal: smallest value above zero.
        spacing: distance from 1.0 to the next larger value.

    Source: IEEE 754-2019 (float16, float32, float64); bfloat16 is the upper half of a float32.
    """

    name: str
    bits: int
    max: float
    smallest_normal: float
    smallest_subnormal: float
    spacing: float


FORMATS = {
    "float16": Format("float16", 16, 65504.0, 2.0**-14, 2.0**-24, 2.0**-10),
    "bfloat16": Format("bfloat16", 16, (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133, 2.0**-7),
    "float32": Format("float32", 32, (2 - 2.0**-23) * 2.0**127, 2.0**-126, 2.0**-149, 2.0**-23),
    "float64": Format("float64", 64, float(np.finfo(np.float64).max), 2.0**-1022, 5e-324, 2.0**-52),
}

ALIASES = {
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "f32": "float32",
    "single": "float32",
    "float": "float32",
    "fp64": "float64",
    "f64": "float64",
    "double": "float64",
}
"""Other names of the formats: C's, numpy's, jmp's, and those of command lines."""


def parse_dtype(value: object, argument: str = "dtype") -> str:
    """Return the canonical name of a dtype given by name, alias or framework object.

    Args:
        value: ``"bf16"``, ``"float16"``, ``numpy.float32``, ``torch.bfloat16``,
            ``mindspore.float16`` and the like; framework objects are read by their name.
        argument: the name that an error message uses.

    Raises:
        PolicyError: the name is not a known floating-point format.

    Examples:
        >>> parse_dtype("bf16"), parse_dtype(np.float32)
        ('bfloat16', 'float32')
    """
    return check_choice(argument, _named(value), FORMATS)


def dtype_of(value: object) -> str | None:
    """Return the canonical name of a floating-point dtype, or None for anything else."""
    name = _named(value)
    return name if name in FORMATS else None


def _named(value: object) -> str:
    """Return what a value calls itself, with aliases resolved; no framework is imported."""
    if isinstance(value, str):
        name = value
    elif isinstance(value, type) and issubclass(value, np.generic):
        name = np.dtype(value).name
    else:
        name = str(getattr(value, "name", value))
    name = name.lower().removeprefix("torch.").removeprefix("tf.").removeprefix("mindspore.")
    return ALIASES.get(name, name)


def is_low(dtype: str) -> bool:
    """Return whether ``dtype`` is a 16-bit format."""
    return FORMATS[dtype].bits == 16


def round_to(x: npt.ArrayLike, dtype: str) -> npt.NDArray[np.float32]:
    """Return ``x`` rounded to ``dtype`` and held in float32: what a cast there and back gives.

    Rounds to nearest, ties to even; values beyond the range become infinite; NaN stays NaN.

    Args:
        x: float32 values, any shape; left untouched.
        dtype: ``"float16"``, ``"bfloat16"`` or ``"float32"``.

    Examples:
        >>> round_to(np.float32(1.005), "bfloat16").item(), round_to(70000.0, "float16").item()
        (1.0078125, inf)
    """
    values = np.asarray(x, np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):  # overflow to inf is the documented result
            return np.asarray(values.astype(np.float16).astype(np.float32))
    if dtype == "float32":
        return values.copy()
    if dtype != "bfloat16":
        check_choice("dtype", dtype, ("float16", "bfloat16", "float32"))
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    # Add just under half a unit, plus one when the kept part is odd: round half to even.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return np.where(np.isnan(values), values, rounded.view(np.float32)).astype(np.float32)
