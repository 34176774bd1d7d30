"""C sources of ours become libraries by the machine's compiler, once; here they are found.

Plain C by ctypes: on two cores a second, any number and shape of tensors without another
compilation, and 16-bit integers are vectorised (docs/decisions/022).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mpcore import numerics
from mpcore._lib.callers import warn_user
from mpcore._lib.machine import cpu_here
from mpcore.capabilities.cache import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LEAST", "UnavailableError", "library", "warn_uncompiled"]

LEAST = 2**20
"""Values that are worth the second that compiling takes."""

_HEADERS = Path(numerics.__file__).parent  # master_bits.h
_FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
_LIBRARY = ("-shared", "-fPIC", "-pthread")
# The first that the compiler takes. Left alone, gcc and clang halve the vectors of AVX-512: the
# update of a copy took 1.2 times as long, of the same bits.
_TUNED = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ())
_TIME_LIMIT = 120.0  # seconds

_WARNED: set[str] = set()


class UnavailableError(Exception):
    """There is no library here; the text says why."""


def library(source: Path) -> Path:
    """Return the library of a C source, from the cache folder or compiled now.

    Raises:
        UnavailableError: no compiler, or it failed; the same text each time in one process.
    """
    found = _tried(source)
    if isinstance(found, str):
        raise UnavailableError(found)
    return found


def warn_uncompiled(why: str) -> None:
    """Warn, once for each reason, that the values take the slow way."""
    if why not in _WARNED:
        _WARNED.add(why)
        msg = (
            f"float32 master values are moved by the framework's own operations, several times "
            f"slower than in one compiled pass: {why}; update='eager' says that this is meant"
        )
        warn_user(msg)


@cache
def _tried(source: Path) -> Path | str:
    if platform.system() != "Linux":
        return f"on {platform.system()} it was not run"
    try:
        return _library(source)
    except (OSError, subprocess.SubprocessError, UnavailableError) as error:
        return str(error)


def _library(source: Path) -> Path:
    read = b"".join(path.read_bytes() for path in (source, *sorted(_HEADERS.glob("*.h"))))
    about = repr((platform.machine(), cpu_here(), _FLAGS, _LIBRARY, _TUNED)).encode()
    name = f"{source.stem}-{hashlib.sha256(read + about).hexdigest()[:16]}.so"
    kept = cache_folder() / name
    if _is_own(kept):
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".mpcore-") as folder:
            made = _compile(source, Path(folder) / name)
            made.replace(kept)  # whole at every moment, whoever else compiles it
        return kept
    except OSError:  # a cache that cannot be written: this process alone has it
        return _compile(source, Path(tempfile.mkdtemp(prefix="mpcore-")) / name)


def _is_own(path: Path) -> bool:
    """Return whether it is a file that nobody else could have put there."""
    try:
        about = path.stat()
    except OSError:
        return False
    return about.st_uid == os.getuid() and not about.st_mode & 0o022


def _compile(source: Path, target: Path) -> Path:
    failed = "no C compiler was found: CC, cc, gcc, clang"
    for compiler in _compilers():
        for tuned in _TUNED:
            flags = [*_FLAGS, *tuned, *_LIBRARY, f"-I{_HEADERS}"]
            command = [compiler, *flags, "-o", str(target), str(source), "-lm"]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIME_LIMIT,
                check=False,
                start_new_session=True,  # Ctrl-C is for this process
            )
            if not done.returncode:
                target.chmod(0o755)
                return target
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            failed = f"{compiler} failed: {lines[0]:.200}"
    raise UnavailableError(failed)


def _compilers() -> Iterator[str]:
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if path:
            yield path
