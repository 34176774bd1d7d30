"""Files that are whole at every moment: the old content or the new one, whatever happens.

New content is written into a file beside the old one, ``.mpcore-*.tmp``, put on the disk, and
renamed over it. A killed process leaves the old file and may leave that one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["is_left_over", "path_of", "write_bytes", "write_file", "write_files", "write_text"]


def path_of(path: object, error: type[Exception], name: str = "path") -> Path:
    """Return ``path`` as a Path.

    Args:
        path: a text or a path.
        error: raised for anything else, and for a name that no system takes.
        name: of the argument, for the message.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        way = "; use os.fsdecode" if isinstance(path, bytes | os.PathLike) else ""
        got = f"{type(path).__name__} {path!r:.80}"
        msg = f"`{name}` must be a text or a pathlib.Path, got {got}{way}"
        raise error(msg)
    if "\0" in os.fspath(path):
        msg = f"`{name}` must not hold a NUL character, got {os.fspath(path)!r:.80}"
        raise error(msg)
    return Path(path)


def write_text(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Write a text, line ends as they are, as ``write_file`` does."""
    write_bytes(path, text.encode(encoding))


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes as ``write_file`` does."""
    write_file(path, partial(_put, data=data))


def write_file(path: Path, fill: Callable[[Path], None], *, flush: bool = True) -> None:
    """Let ``fill`` write a new file, then put it in the place of ``path``.

    A link stays a link, and the mode of the old file stays.

    Args:
        path: of the file.
        fill: writes it.
        flush: wait until it is on the disk; else it outlives the process, but not the machine.

    Raises:
        OSError: the folder is missing, full, or not writable; the old file is whole.
    """
    target = Path(os.path.realpath(path))
    beside = _write_beside(target, fill, flush=flush)
    try:
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if flush:
        _flush_folder(target.parent)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write several files of a folder; after a failure all old ones are there again.

    All are on the disk before the first is renamed.

    Args:
        folder: exists.
        contents: by name.

    Raises:
        OSError: the folder is full or not writable.
    """
    old = {name: _read(folder / name) for name in contents}
    waiting: dict[str, Path] = {}
    moved: list[str] = []
    try:
        for name, data in contents.items():
            waiting[name] = _write_beside(folder / name, partial(_put, data=data))
        for name in contents:
            os.replace(waiting[name], folder / name)
            moved.append(name)
    except BaseException:
        for path in waiting.values():
            path.unlink(missing_ok=True)
        for name in moved:
            _restore(folder / name, old[name])
        raise
    _flush_folder(folder)


def is_left_over(path: Path) -> bool:
    """Return whether a file is what a killed process left beside one of ours."""
    return path.name.startswith(".mpcore-") and path.suffix == ".tmp"


def _write_beside(target: Path, fill: Callable[[Path], None], *, flush: bool = True) -> Path:
    beside = target.parent / f".mpcore-{secrets.token_hex(8)}.tmp"
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    try:
        fill(beside)
        if flush:
            with beside.open("rb+") as file:
                os.fsync(file.fileno())
        if mode is not None:
            beside.chmod(mode)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return beside


def _put(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _restore(path: Path, data: bytes | None) -> None:
    with contextlib.suppress(OSError):  # the first failure is the one to report
        if data is None:
            path.unlink()
        else:
            write_bytes(path, data)


def _flush_folder(folder: Path) -> None:
    """Put the new name, too, on the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
