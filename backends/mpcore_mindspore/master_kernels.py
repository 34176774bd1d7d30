"""Opening and closing of float32 values in one pass on a CPU: ``master_kernels.c`` as operators.

MindSpore's own shifts, masks and casts take a pass over memory each, ten times as long as one of
these. Before an operator is used, its function is called by ctypes and every bit compared with the
core's arithmetic.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import ops

from mpcore.capabilities.compiled import LEAST, UnavailableError, library, warn_uncompiled
from mpcore.errors import BackendError
from mpcore.numerics import master_weights as arithmetic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from mpcore.numerics.master_weights import MasterWeights
    from mpcore.policy.policy import Policy

__all__ = ["Kernels", "chosen", "options_of"]

SCHEMES = (
    "copy:nearest",
    "copy:away",
    "copy:truncate",
    "split:away",
    "split:truncate",
    "split:nearest",
    "kahan:nearest",
    "stochastic:stochastic",
)  # as in master_kernels.c

_SOURCE = Path(__file__).with_name("master_kernels.c")
_LEAST = LEAST
_STEPS, _ORDINAL, _SEED = 5, 3, 2**31 + 7


@dataclass(frozen=True)
class Kernels:
    """Operators of MindSpore.

    Attributes:
        opening: (options, low, beside) to float32 values.
        opening_ties: the same of ``split:nearest``, with ties.
        closing: (options, steps, values) to what is stored, by the number of parts.
        opening_moment: what is stored to float32 values.
        closing_moment: float32 values to what is stored.
    """

    opening: Any
    opening_ties: Any
    closing: dict[int, Any]
    opening_moment: Any
    closing_moment: Any


def options_of(scheme: MasterWeights, ordinal: int) -> npt.NDArray[np.int32]:
    """Return what the kernels want to know of one parameter."""
    kind = SCHEMES.index(f"{scheme.name}:{scheme.rounding}")
    return np.array([kind, scheme.seed, ordinal], np.uint32).view(np.int32)


def chosen(choice: str, policy: Policy, params: Iterable[Any]) -> tuple[Kernels | None, str]:
    """Return the operators, if they are to be used, and what is said of it.

    Args:
        choice: of ``prepare(update=...)``.
        policy: of the model.
        params: the network's that have 16 bits.

    Raises:
        BackendError: ``"compiled"`` cannot be had.
    """
    params = list(params)
    why = _why_not(choice, policy, params)
    if not why:
        try:
            return kernels(str(library(_SOURCE))), "compiled"
        except UnavailableError as error:
            why = str(error)
            if choice == "auto":
                warn_uncompiled(why)
    if choice == "compiled":
        msg = f"`update` must be 'auto' or 'eager' here, got 'compiled': {why}"
        raise BackendError(msg)
    return None, f"eager: {why}"


def _why_not(choice: str, policy: Policy, params: Sequence[Any]) -> str:
    if choice == "eager":
        return "update='eager'"
    if policy.scheme.name == "none" or not params:
        return "there are no float32 master values"
    if ms.get_context("device_target") != "CPU":
        return f"on {ms.get_context('device_target')} it was not run"
    if any(param.dtype != ms.float32 for param in params):
        return f"{params[0].dtype} parameters are not in the kernel"
    count = sum(int(np.prod(param.shape)) for param in params)
    if choice == "auto" and count < _LEAST:
        return f"{count:,} values are not worth a second of compiling; update='compiled' does it"
    return ""


@cache
def kernels(path: str) -> Kernels:
    """Return the operators of a library that computes what it should.

    Raises:
        UnavailableError: it does not.
    """
    try:
        wrong = _wrong(ctypes.CDLL(path))
    except (OSError, AttributeError) as error:
        raise UnavailableError(str(error)) from error
    if wrong:
        msg = f"the kernel was seen to compute other bits: {', '.join(wrong)}"
        raise UnavailableError(msg)
    wide, half, words = ms.float32, ms.int16, ms.int32
    parts = {
        1: (lambda o, s, x: x, lambda o, s, x: wide),
        2: (lambda o, s, x: (x, x), lambda o, s, x: (wide, half)),
        3: (lambda o, s, x: (x, x, _words(x)), lambda o, s, x: (wide, half, words)),
    }
    return Kernels(
        _operator(path, "open", lambda o, low, b: low, lambda o, low, b: wide),
        _operator(path, "open", lambda o, low, b, t: low, lambda o, low, b, t: wide),
        {count: _operator(path, "close", *infer) for count, infer in parts.items()},
        _operator(path, "open_moment", lambda stored: stored, lambda stored: wide),
        _operator(path, "close_moment", lambda live: live, lambda live: half),
    )


def _words(shape: Sequence[int]) -> list[int]:
    return [-(-int(np.prod(shape)) // 32)]


def _operator(path: str, name: str, shape: Any, dtype: Any) -> Any:
    return ops.Custom(f"{path}:mpcore_{name}", shape, dtype, "aot")


def _wrong(loaded: ctypes.CDLL) -> list[str]:
    """Return what differs from the core's arithmetic, on patterns of every kind."""
    values = _patterns().view(np.float32)
    found = []
    for text in SCHEMES:
        name, _, rounding = text.partition(":")
        scheme = arithmetic.MasterWeights(name, rounding, _SEED)
        options = options_of(scheme, _ORDINAL)
        stored, opened = _expected(scheme, values)
        got = [np.empty_like(part) for part in stored]
        _call(loaded.mpcore_close, [options, np.array([_STEPS], np.int32), values, *got])
        if any(
            (part.view(np.uint8) != want.view(np.uint8)).any()
            for part, want in zip(got, stored, strict=True)
        ):
            found.append(f"closing {text}")
        if len(stored) > 1:
            back = np.empty_like(values)
            _call(loaded.mpcore_open, [options, *stored, back])
            if (back.view(np.uint32) != opened.view(np.uint32)).any():
                found.append(f"opening {text}")
    low = arithmetic.round_bits(values)
    got_low, back = np.empty_like(low), np.empty_like(values)
    _call(loaded.mpcore_close_moment, [values, got_low])
    _call(loaded.mpcore_open_moment, [low, back])
    if (got_low != low).any() or (
        back.view(np.uint32) != arithmetic.widen(low).view(np.uint32)
    ).any():
        found.append("moments")
    return found


def _expected(scheme: MasterWeights, values: Any) -> tuple[list[npt.NDArray[Any]], Any]:
    """Return what is stored of ``values``, as the kernels lay it out, and what it opens to."""
    if scheme.name == "copy":
        return [arithmetic.widen(arithmetic.round_bits(values, scheme.rounding))], values
    if scheme.name == "stochastic":
        noise = arithmetic.noise(_SEED, _STEPS, _ORDINAL, values.size)
        return [arithmetic.widen(arithmetic.round_stochastic(values, noise))], values
    if scheme.name == "kahan":
        high, remainder = arithmetic.compensate(values)
        return [arithmetic.widen(high), remainder], arithmetic.restore(high, remainder)
    high, rest, ties = arithmetic.split(values, scheme.rounding)
    stored = [arithmetic.widen(high), rest]
    if scheme.rounding == "nearest":
        flags = np.zeros(_words(values.shape)[0] * 32, np.uint8)
        flags[ties] = 1
        stored.append(np.packbits(flags, bitorder="little").view(np.int32))
    return stored, arithmetic.join(high, rest, scheme.rounding, ties)


def _patterns() -> npt.NDArray[np.uint32]:
    """Return float32 patterns of every kind: by chance, ties, the edges, NaNs."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, 2**32, 5000, dtype=np.uint32)
    ties = (drawn[:1000] & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    edges = [0, 1, 0x7FFF, 0x8000, 0x7FFFFF, 0x800000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF]
    edges += [0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF]
    both = np.array([*edges, *(edge | 0x80000000 for edge in edges)], np.uint32)
    return np.concatenate([drawn, ties, both])


def _call(function: Any, arrays: Sequence[npt.NDArray[Any]]) -> None:
    """Call a kernel as MindSpore does."""
    count = len(arrays)
    places = (ctypes.c_void_p * count)(*(array.ctypes.data for array in arrays))
    dims = (ctypes.c_int * count)(*(array.ndim for array in arrays))
    sizes = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in arrays]
    shapes = (ctypes.POINTER(ctypes.c_int64) * count)(
        *(ctypes.cast(one, ctypes.POINTER(ctypes.c_int64)) for one in sizes)
    )
    function(count, places, dims, shapes, None, None, None)
