"""The arithmetic of master weights in TensorFlow: the same bits as ``numerics.master_weights``.

Whole numbers throughout, no pairs of casts: XLA takes a cast to bfloat16 and back for nothing
(``xla_allow_excess_precision``), and CPUs flush subnormal floats.

Large tensors are rounded by functions that XLA compiles, one pass over the memory instead of one
for each operation; they are functions of whole numbers, so they give the same bits.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "compensate",
    "join",
    "noise",
    "restore",
    "round_low",
    "round_stochastic",
    "split",
    "tie_bytes",
    "widen",
]

_NAN = np.uint32(0x7FC00000)
_INF = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_HALF = np.uint32(0x8000)
_WORD = np.uint32(16)
_ONE = np.uint32(1)

_COMPILED_FROM = 2**16  # values; of fewer, a call of a compiled function costs what it saves


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let XLA compile ``function`` where its first argument is large; its shape is static."""
    fused = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def run(first: tf.Tensor, *rest: tf.Tensor) -> Any:
        large = first.shape.num_elements() >= _COMPILED_FROM
        return (fused if large else function)(first, *rest)

    return run


def _bits(values: tf.Tensor) -> Any:
    bits = tf.bitcast(values, tf.uint32)
    is_nan = tf.bitwise.bitwise_and(bits, _MAGNITUDE) > _INF
    return tf.where(is_nan, tf.constant(_NAN), bits)


def _bfloat16(high: tf.Tensor) -> Any:
    """Return the bfloat16 whose bits are the low half of uint32 ``high``."""
    return tf.bitcast(tf.cast(high, tf.uint16), tf.bfloat16)


def _raised(low: tf.Tensor) -> Any:
    """Return the bits of a bfloat16 in the high half of a uint32."""
    return tf.bitwise.left_shift(tf.cast(tf.bitcast(low, tf.uint16), tf.uint32), _WORD)


def _shifted(bits: tf.Tensor) -> Any:
    return tf.bitwise.right_shift(bits, _WORD)


def _high(bits: tf.Tensor, rounding: str) -> Any:
    if rounding == "nearest":
        odd = tf.bitwise.bitwise_and(_shifted(bits), _ONE)
        return _shifted(bits + (odd + np.uint32(0x7FFF)))
    return _shifted(bits + _HALF if rounding == "away" else bits)


@_compiled
def widen(low: tf.Tensor) -> Any:
    """Return bfloat16 as float32."""
    return tf.bitcast(_raised(low), tf.float32)


@_compiled
def round_low(values: tf.Tensor, rounding: str) -> Any:
    """Return float32 as bfloat16; see ``mpcore.numerics.master_weights.round_bits``."""
    return _bfloat16(_high(_bits(values), rounding))


def tie_bytes(size: int) -> int:
    """Return how many bytes hold one bit for each of ``size`` values."""
    return -(-size // 8)


@_compiled
def split(values: tf.Tensor, rounding: str) -> tuple[Any, ...]:
    """Return float32 as a bfloat16, 16 further bits, and for ``"nearest"`` a bit for each tie.

    A graph needs static shapes, so the ties that went down are no list: each value has a bit,
    eight to a byte, in C order.

    Returns:
        (low, rest) or (low, rest, ties): bfloat16; int16, or uint16 if truncated; uint8, shape
        (tie_bytes(size),).
    """
    bits = _bits(values)
    low = _bfloat16(_high(bits, rounding))
    rest = tf.cast(tf.bitwise.bitwise_and(bits, np.uint32(0xFFFF)), tf.uint16)
    if rounding == "truncate":
        return low, rest
    rest = tf.bitcast(rest, tf.int16)
    if rounding == "away":
        return low, rest
    down = tf.bitwise.bitwise_and(bits, np.uint32(0x1FFFF)) == _HALF
    return low, rest, _packed(tf.reshape(down, (-1,)))


@_compiled
def join(low: tf.Tensor, rest: tf.Tensor, rounding: str, ties: tf.Tensor | None = None) -> Any:
    """Return the float32 that ``split`` was given, bit for bit."""
    kept = _raised(low)
    if rounding != "truncate":
        up = rest < 0
        if ties is not None:
            flat = tf.reshape(up, (-1,))
            up = tf.reshape(flat & ~_unpacked(ties, flat.shape.num_elements()), up.shape)
        kept = kept - tf.bitwise.left_shift(tf.cast(up, tf.uint32), _WORD)
        rest = tf.bitcast(rest, tf.uint16)
    return tf.bitcast(tf.bitwise.bitwise_or(kept, tf.cast(rest, tf.uint32)), tf.float32)


def _packed(flags: tf.Tensor) -> Any:
    size = flags.shape.num_elements()
    padded = tf.pad(tf.cast(flags, tf.int32), [[0, tie_bytes(size) * 8 - size]])
    weights = tf.constant([1, 2, 4, 8, 16, 32, 64, 128], tf.int32)
    return tf.cast(tf.reduce_sum(tf.reshape(padded, (-1, 8)) * weights, axis=1), tf.uint8)


def _unpacked(packed: tf.Tensor, size: int) -> Any:
    places = tf.range(8, dtype=tf.int32)
    bits = tf.bitwise.right_shift(tf.cast(packed, tf.int32)[:, None], places)
    return tf.reshape(tf.bitwise.bitwise_and(bits, 1), (-1,))[:size] > 0


@_compiled
def compensate(values: tf.Tensor) -> tuple[Any, Any]:
    """Return float32 as two bfloat16; see ``mpcore.numerics.master_weights.compensate``."""
    bits = _bits(values)
    high = tf.bitwise.left_shift(_high(bits, "nearest"), _WORD)
    missing = tf.bitcast(bits, tf.float32) - tf.bitcast(high, tf.float32)
    finite = tf.bitwise.bitwise_and(high, _MAGNITUDE) < _INF
    missing = tf.where(finite, missing, tf.zeros_like(missing))
    remainder = _high(tf.bitcast(missing, tf.uint32), "nearest")
    return _bfloat16(_shifted(high)), _bfloat16(remainder)


@_compiled
def restore(low: tf.Tensor, remainder: tf.Tensor) -> Any:
    """Return the float32 sum of what ``compensate`` gave."""
    return tf.bitcast(_raised(low), tf.float32) + tf.bitcast(_raised(remainder), tf.float32)


def _mixed(x: tf.Tensor) -> Any:
    """Return well mixed uint32.

    Source: lowbias32, C. Wellons, hash-prospector.
    """
    x = tf.bitwise.bitwise_xor(x, _shifted(x)) * np.uint32(0x7FEB352D)
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, np.uint32(15)))
    x = x * np.uint32(0x846CA68B)
    return tf.bitwise.bitwise_xor(x, _shifted(x))


def noise(shape: tf.TensorShape, seed: int, step: tf.Tensor, ordinal: int) -> Any:
    """Return the random bits of one parameter in one step; see ``numerics.master_weights.noise``.

    Args:
        shape: static shape of the parameter.
        seed: 0 to 2^32 - 1.
        step: optimizer steps before this one, a 0-d uint32.
        ordinal: place of the parameter among those of its optimizer.

    Returns:
        uint32 below 2^16, of that shape.
    """
    seeded = _mixed(tf.constant(np.uint32(seed)))
    key = _mixed(_mixed(seeded + step) + np.uint32(ordinal))
    index = tf.cast(tf.range(shape.num_elements(), dtype=tf.int64), tf.uint32)
    return tf.reshape(_shifted(_mixed(tf.bitwise.bitwise_xor(index, key))), shape)


@_compiled
def round_stochastic(values: tf.Tensor, seed: int, step: tf.Tensor, ordinal: int) -> Any:
    """Return float32 as bfloat16, rounded up in magnitude by chance; a finite value stays so."""
    bits = _bits(values)
    high = _shifted(bits + noise(values.shape, seed, step, ordinal))
    inf = tf.bitwise.bitwise_and(high, np.uint32(0x7FFF)) == _shifted(tf.constant(_INF))
    beyond = inf & (tf.bitwise.bitwise_and(bits, _MAGNITUDE) < _INF)
    return _bfloat16(high - tf.cast(beyond, tf.uint32))
