"""The library of ``update_kernels.c``, and the square root that torch's own build takes."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from mpcore.capabilities.compiled import UnavailableError, library

__all__ = ["kernel", "mkl_root"]

_SOURCE = Path(__file__).with_name("update_kernels.c")


def kernel() -> ctypes._NamedFuncPointer:
    """Return ``mpcore_update``, from the cache folder or compiled now.

    Raises:
        UnavailableError: no compiler, or it failed; the same text each time in one process.
    """
    return _loaded(library(_SOURCE))


@cache
def _loaded(path: Path) -> ctypes._NamedFuncPointer:
    try:
        function = ctypes.CDLL(str(path)).mpcore_update
    except OSError as error:
        raise UnavailableError(str(error)) from error
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    function.restype = None
    return function


@cache
def mkl_root() -> int:
    """Return the address of ``vmsSqrt`` in torch's own library; 0 where it has none."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        found = ctypes.CDLL(str(path)).vmsSqrt
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0
