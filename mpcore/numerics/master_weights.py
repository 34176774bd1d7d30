"""Where the float32 master values of 16-bit parameters live, and its arithmetic.

Every scheme is one pair of functions: what is stored between steps becomes float32 values, an
optimizer moves those, and they become what is stored again. The functions here are the executable
reference, in numpy; a bfloat16 is carried as its 16 bits, ``uint16``. The frameworks compute the
same bits on their own devices.

Of numbers that are no ordinary ones, in every scheme: a NaN becomes the canonical one,
``0x7fc00000``; infinities, zeros of both signs and subnormals are kept as they are. A finite value
beyond the largest finite bfloat16 reads as infinity in the parameter, as the framework's own cast
would have it; ``copy`` and ``split`` still hold it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.errors import PolicyError, check_choice

if TYPE_CHECKING:
    import numpy.typing as npt

    U16 = npt.NDArray[np.uint16]
    U32 = npt.NDArray[np.uint32]
    F32 = npt.NDArray[np.float32]

__all__ = [
    "CHUNK",
    "SCHEMES",
    "MasterWeights",
    "compensate",
    "join",
    "noise",
    "restore",
    "restore_for_saving",
    "round_bits",
    "round_stochastic",
    "split",
    "widen",
]

SCHEMES: dict[str, tuple[str, ...]] = {
    # scheme: its variants, the default first
    "none": ("",),
    "copy": ("nearest", "away", "truncate"),
    "split": ("away", "truncate", "nearest"),
    "kahan": ("",),
    "stochastic": ("0",),
}
"""Schemes of master weights, with the roundings that each knows; for stochastic a seed."""

CHUNK = 2**26
"""Float32 values that a backend opens at a time, where its optimizer can take them in parts."""

_MOST_SEED = 2**32 - 1
_ROUNDINGS = ("nearest", "away", "truncate")
_NAN = np.uint32(0x7FC00000)
_INF = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_HALF = np.uint32(0x8000)
_WORD = np.uint32(16)


@dataclass(frozen=True)
class MasterWeights:
    """A scheme of master weights, as ``Policy.master`` names it: ``SCHEME`` or ``SCHEME:VARIANT``.

    Attributes:
        name: one of ``SCHEMES``.
        rounding: how float32 becomes the 16-bit parameter: ``"nearest"`` (ties to even),
            ``"away"`` (ties away from zero), ``"truncate"``, or ``"stochastic"``.
        seed: seed of stochastic rounding, 0 to 2^32 - 1.

    Examples:
        >>> MasterWeights.parse("split").rounding, MasterWeights.parse("stochastic:7").seed
        ('away', 7)
    """

    name: str
    rounding: str = "nearest"
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> MasterWeights:
        """Return the scheme that ``text`` names.

        Raises:
            PolicyError: no such scheme or variant.
        """
        if not isinstance(text, str):
            msg = f"`master` must be a text, got {text!r:.80}; choose from {', '.join(SCHEMES)}"
            raise PolicyError(msg)
        name, colon, variant = text.partition(":")
        check_choice("master", name, SCHEMES)
        if name == "stochastic":
            if colon and not (variant.isdecimal() and int(variant) <= _MOST_SEED):
                msg = f"`master` 'stochastic:SEED' needs a seed of 0 to {_MOST_SEED}, got {text!r}"
                raise PolicyError(msg)
            return cls(name, "stochastic", int(variant or "0"))
        variants = SCHEMES[name]
        if colon:
            check_choice(f"rounding of master={name!r}", variant, variants)
        return cls(name, variant or variants[0] or "nearest")


def _bits(values: npt.ArrayLike) -> U32:
    """Return the bits of float32 values, every NaN as the canonical one; a new array."""
    array = np.ascontiguousarray(values, np.float32)
    bits = array.view(np.uint32).reshape(np.shape(values)).copy()
    bits[(bits & _MAGNITUDE) > _INF] = _NAN
    return bits


def _floats(bits: npt.NDArray[Any]) -> F32:
    return np.asarray(bits.astype(np.uint32).view(np.float32))


def _high(bits: U32, rounding: str) -> U16:
    check_choice("rounding", rounding, _ROUNDINGS)
    if rounding == "nearest":
        # just under half a unit, plus one when the kept part is odd: ties go to even
        bits = bits + np.uint32(0x7FFF) + ((bits >> _WORD) & np.uint32(1))
    elif rounding == "away":
        bits = bits + _HALF
    return np.asarray((bits >> _WORD).astype(np.uint16))


def round_bits(values: npt.ArrayLike, rounding: str = "nearest") -> U16:
    """Return float32 values as bfloat16 bits.

    Args:
        values: float32, any shape; left untouched.
        rounding: ``"nearest"`` (ties to even, as the frameworks cast), ``"away"`` (ties away
            from zero), ``"truncate"`` (towards zero).

    Examples:
        >>> [hex(round_bits(np.float32([1.00390625]), r)[0]) for r in ("nearest", "away")]
        ['0x3f80', '0x3f81']
    """
    return _high(_bits(values), rounding)


def widen(bits: npt.NDArray[np.uint16]) -> F32:
    """Return the float32 values of bfloat16 bits, exactly; any shape."""
    return _floats(np.asarray(bits, np.uint32) << _WORD)


def split(
    values: npt.ArrayLike, rounding: str = "away"
) -> tuple[U16, npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return float32 values as bfloat16 bits and 16 further bits, from which ``join`` is exact.

    Rounded to nearest, either way, the further bits are signed: the distance from the rounded
    value, in units of the last place of float32. A tie is -32768 whether it went up or down; with
    ties away from zero it always went up. With ties to even the ones that went down are listed:
    one value in 2^17 on average.

    Args:
        values: float32, any shape; left untouched.
        rounding: as for ``round_bits``.

    Returns:
        (high, rest, ties): uint16; int16, or uint16 if truncated; int64 flat indices in C order,
        ascending, empty unless ``"nearest"``.

    Source: the signed remainder is that of ``store_param_remainders`` in NVIDIA Apex,
    multi_tensor_distopt_adam_kernel.cu, commit eb2de4f; the list of ties is our own.
    """
    bits = _bits(values)
    high = _high(bits, rounding)
    rest = (bits & np.uint32(0xFFFF)).astype(np.uint16)
    ties = np.empty(0, np.int64)
    if rounding == "truncate":
        return high, rest, ties
    if rounding == "nearest":
        ties = np.flatnonzero((bits & np.uint32(0x1FFFF)) == _HALF)
    return high, rest.view(np.int16), ties


def join(
    high: npt.NDArray[np.uint16],
    rest: npt.NDArray[Any],
    rounding: str = "away",
    ties: npt.NDArray[np.int64] | None = None,
) -> F32:
    """Return the float32 values that ``split`` was given, bit for bit (NaN: the canonical one)."""
    check_choice("rounding", rounding, _ROUNDINGS)
    kept = np.asarray(high, np.uint32)
    if rounding != "truncate":
        up = np.asarray(rest < 0)
        if ties is not None and len(ties):
            up.reshape(-1)[ties] = False
        kept = kept - up.astype(np.uint32)
    low = np.ascontiguousarray(rest).view(np.uint16).reshape(np.shape(rest))
    return _floats((kept << _WORD) | low)


def compensate(values: npt.ArrayLike) -> tuple[U16, U16]:
    """Return float32 values as two bfloat16: the nearest, and the nearest to what is missing.

    Their sum, ``restore``, is within 2^-17 of the value, relative, if that is at least 2^-116 in
    magnitude; below, within 2^-134. Where the first is infinite or NaN the second is 0: a finite
    value beyond the range is lost here.

    Returns:
        (high, remainder): bits, each of the shape of ``values``.

    Source: Kahan 1965, Further remarks on reducing truncation errors, Comm. ACM 8(1); stored as
    two values as in Zamirai et al. 2020, arXiv:2010.06192.
    """
    master = _floats(_bits(values))
    high = round_bits(master)
    near = widen(high)
    with np.errstate(invalid="ignore"):  # infinity minus infinity, not taken
        missing = np.where(np.isfinite(near), master - near, np.float32(0))
    return high, round_bits(missing)


def restore(high: npt.NDArray[np.uint16], remainder: npt.NDArray[np.uint16]) -> F32:
    """Return the float32 sums of what ``compensate`` gave."""
    return np.asarray(widen(high) + widen(remainder))


def restore_for_saving(high: npt.NDArray[np.uint16], remainder: npt.NDArray[np.uint16]) -> F32:
    """Return the sums, such that ``compensate`` makes the same two of them again.

    A remainder that was rounded up to half a unit makes the sum a tie, which may go to the
    neighbour of ``high``; such a sum is moved towards ``high`` by one unit of float32.
    """
    total = restore(high, remainder)
    other = round_bits(total) != high
    return np.where(other, np.nextafter(total, widen(high)), total).astype(np.float32)


def _mix(x: Any) -> U32:
    """Return well mixed 32 bits; arithmetic modulo 2^32.

    Source: lowbias32, C. Wellons, hash-prospector.
    """
    x = np.atleast_1d(np.array(x, np.uint32))  # arrays wrap silently, numpy's scalars warn
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    return np.asarray(x ^ (x >> np.uint32(16)))


def noise(seed: int, step: int, ordinal: int, count: int, start: int = 0) -> U16:
    """Return the random bits of one parameter in one step: the same in every framework.

    ``key = mix(mix(mix(seed) + step) + ordinal)`` and ``noise[i] = mix(i ^ key) >> 16``, modulo
    2^32. Nothing is kept but the number of optimizer steps, and any part can be had by itself.

    Args:
        seed: 0 to 2^32 - 1.
        step: optimizer steps taken before this one.
        ordinal: place of the parameter among those of its optimizer, from 0.
        count: how many.
        start: flat index, in C order, of the first.

    Returns:
        uint16, shape (count,).

    Examples:
        >>> noise(0, 0, 0, 3).tolist() == noise(0, 0, 0, 5)[:3].tolist()
        True
    """
    word = 2**32
    key = _mix(seed % word)
    key = _mix(key + np.uint32(step % word))
    key = _mix(key + np.uint32(ordinal % word))
    index = (np.arange(start, start + count, dtype=np.int64) % word).astype(np.uint32)
    return np.asarray((_mix(index ^ key) >> _WORD).astype(np.uint16))


def round_stochastic(values: npt.ArrayLike, noise: npt.NDArray[np.uint16]) -> U16:
    """Return float32 values as bfloat16 bits, rounded up in magnitude by chance.

    The chance is the distance from the lower neighbour, in units in the last place: on average
    nothing is lost. A finite value stays finite: it becomes the largest at most.

    Args:
        values: float32, any shape; left untouched.
        noise: uint16, as many as there are values.
    """
    bits = _bits(values)
    add = np.asarray(noise, np.uint32).reshape(bits.shape)
    high = (bits + add) >> _WORD
    # an infinity has no further bits: noise does not move it, and it is never decremented
    beyond = ((high & np.uint32(0x7FFF)) == (_INF >> _WORD)) & ((bits & _MAGNITUDE) < _INF)
    return np.asarray((high - beyond.astype(np.uint32)).astype(np.uint16))
