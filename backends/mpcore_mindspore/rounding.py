"""The bits of float32 numbers as int32 tensors, for eager code and for the graph compiler.

MindSpore has no unsigned 32-bit arithmetic on CPU. The int32 operations here wrap around, and a
shift to the right is masked, so that the bits are those of ``mpcore.numerics.master_weights``.
Numbers
become bits, and bits numbers, through Parameters that share memory (see ``storage``): the graph
compiler has no bit cast (mindspore 2.10.0: ``Tensor.view(dtype)`` is "not impl" there).
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import ops

__all__ = [
    "canonical",
    "joined",
    "low_bits",
    "noise",
    "noise_key",
    "pack",
    "rounded",
    "rounded_stochastic",
    "ties",
    "unpack",
]

_HIGH = -65536  # the upper 16 bits
_LOW = 65535
_MAGNITUDE = 2**31 - 1
_INF = 0x7F800000
_NAN = 0x7FC00000
_ODD = 0x1FFFF  # the lower 16 bits and the last that is kept
_TIE = 0x8000
_WORD = 32
_MIX_A = 0x7FEB352D
_MIX_B = 0x846CA68B - 2**32


def canonical(bits: ms.Tensor) -> Any:
    """Return the bits with every NaN as the one that all frameworks write."""
    is_nan = ops.bitwise_and(bits, _MAGNITUDE) > _INF
    return ops.select(is_nan, ops.full_like(bits, _NAN), bits)


def rounded(bits: ms.Tensor, rounding: str) -> Any:
    """Return the bits rounded to bfloat16, the lower half zero.

    Args:
        bits: canonical, int32.
        rounding: ``"nearest"``, ``"away"`` or ``"truncate"``.
    """
    if rounding == "nearest":
        odd = ops.bitwise_and(ops.bitwise_right_shift(bits, 16), 1)
        bits = bits + odd + (_TIE - 1)
    elif rounding == "away":
        bits = bits + _TIE
    return ops.bitwise_and(bits, _HIGH)


def low_bits(bits: ms.Tensor) -> Any:
    """Return the lower 16 bits as int16: what is missing from the rounded number."""
    low = ops.bitwise_and(bits, _LOW)
    # Within the range of int16 before the cast, which need not wrap.
    return (ops.bitwise_xor(low, _TIE) - _TIE).astype(ms.int16)


def joined(high: ms.Tensor, low: ms.Tensor, rounding: str) -> Any:
    """Return the bits of which ``rounded`` is ``high`` and ``low_bits`` is ``low``.

    Ties that ``"nearest"`` rounded down come out 2^16 too small: ``unpack`` has them.
    """
    missing = low.astype(ms.int32)
    if rounding == "truncate":
        missing = ops.bitwise_and(missing, _LOW)
    return high + missing


def ties(bits: ms.Tensor) -> Any:
    """Return 1 where ``"nearest"`` rounds a tie down, else 0; int32."""
    return (ops.bitwise_and(bits, _ODD) == _TIE).astype(ms.int32)


def pack(flags: ms.Tensor) -> Any:
    """Return flags of 0 and 1, any shape, as int32 words of 32; zeros fill the last."""
    flat = flags.reshape((-1,))
    missing = -flat.shape[0] % _WORD
    if missing:
        flat = ops.cat((flat, ops.zeros((missing,), ms.int32)))
    words = flat.reshape((-1, _WORD))
    for width in (16, 8, 4, 2, 1):
        upper = ops.bitwise_left_shift(words[:, width:], width)
        words = ops.bitwise_or(words[:, :width], upper)
    return words.reshape((-1,))


def unpack(words: ms.Tensor, shape: tuple[int, ...], size: int) -> Any:
    """Return the flags of ``pack``; int32 of ``shape``, which has ``size`` elements."""
    places = ops.arange(0, _WORD, dtype=ms.int32)
    flags = ops.bitwise_and(ops.bitwise_right_shift(words.reshape((-1, 1)), places), 1)
    return flags.reshape((-1,))[:size].reshape(shape)


def _shifted(x: ms.Tensor, count: int) -> Any:
    return ops.bitwise_and(ops.bitwise_right_shift(x, count), 2 ** (32 - count) - 1)


def _mix(x: ms.Tensor) -> Any:
    """Return 32 well mixed bits: lowbias32, as in ``mpcore.numerics.master_weights``."""
    x = ops.bitwise_xor(x, _shifted(x, 16)) * _MIX_A
    x = ops.bitwise_xor(x, _shifted(x, 15)) * _MIX_B
    return ops.bitwise_xor(x, _shifted(x, 16))


def noise_key(seed: int, step: ms.Tensor, ordinal: int) -> Any:
    """Return what the noise of one parameter in one step is made from.

    Args:
        seed: as int32.
        step: optimizer steps before this one, int32, shape (1,).
        ordinal: place of the parameter in its optimizer.
    """
    return _mix(_mix(_mix(ops.zeros_like(step) + seed) + step) + ordinal)


def noise(key: ms.Tensor, shape: tuple[int, ...], size: int, columns: int) -> Any:
    """Return the 16 random bits of each element, as ``mpcore.numerics.master_weights.noise`` does.

    Args:
        key: of ``noise_key``.
        shape: of the parameter.
        size: its number of elements.
        columns: a power of two, best near the root of ``size``.
    """
    # Rows and columns by their own bits, so that no constant of the graph has the full size.
    rows = -(-size // columns)
    index = ops.bitwise_xor(ops.arange(0, rows, dtype=ms.int32) * columns, key).reshape((-1, 1))
    index = ops.bitwise_xor(index, ops.arange(0, columns, dtype=ms.int32))
    return _shifted(_mix(index), 16).reshape((-1,))[:size].reshape(shape)


def rounded_stochastic(bits: ms.Tensor, chance: ms.Tensor) -> Any:
    """Return the bits rounded to bfloat16 by chance; finite ones stay finite.

    Args:
        bits: canonical, int32.
        chance: of ``noise``, same shape.
    """
    high = ops.bitwise_and(bits + chance, _HIGH)
    infinite = ops.bitwise_and(high, _MAGNITUDE) == _INF
    beyond = ops.logical_and(infinite, ops.bitwise_and(bits, _MAGNITUDE) < _INF)
    return ops.select(beyond, high - 65536, high)
