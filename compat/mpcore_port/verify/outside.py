"""What a step that was taken out does to files outside of its run: nothing.

It runs unasked, many times; what a script writes or deletes by absolute paths is somebody's.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install", "is_outside"]

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_CHANGED = {
    "os.remove": 1, "os.rmdir": 1, "os.truncate": 1, "os.chmod": 1, "os.chown": 1, "os.utime": 1,
    "os.setxattr": 1, "os.removexattr": 1, "os.rename": 2, "os.link": 2, "os.symlink": 2,
}  # fmt: skip
"""Events of CPython 3.10's audit table: how many of their first arguments are files they change."""


def install() -> None:
    """Have this process change no file outside of its run, by Python's own functions.

    A folder is not made, and a tree not removed, as if they were; what else would change something
    raises PermissionError. Libraries that write by C alone are not seen.
    """
    tempfile.gettempdir()  # it tries to write, once
    os.mkdir = _unless_outside(os.mkdir)
    shutil.rmtree = _unless_outside(shutil.rmtree)  # type: ignore[assignment]
    sys.addaudithook(_forbid)


def is_outside(file: Any) -> bool:
    """Return whether a path leads out of the folder of the run, the temporary one and devices."""
    if not isinstance(file, (str, bytes, os.PathLike)):
        return False
    here = (os.getcwd(), tempfile.gettempdir(), "/dev")
    path = Path(os.path.realpath(os.fsdecode(file)))
    return not any(path.is_relative_to(os.path.realpath(folder)) for folder in here)


def _unless_outside(change: Callable[..., Any]) -> Callable[..., Any]:
    def changed(path: Any, *args: Any, **kwargs: Any) -> Any:
        return None if is_outside(path) else change(path, *args, **kwargs)

    return changed


def _forbid(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        files = args[:1] if isinstance(args[2], int) and args[2] & _WRITES else ()
    else:
        files = args[: _CHANGED.get(event, 0)]
    for file in files:
        if is_outside(file):
            msg = f"{os.fsdecode(file)}: not changed while a step is verified"
            raise PermissionError(msg)
