"""Commands that a script gives a shell: while it is verified none is run that changes a machine."""

from __future__ import annotations

import io
import os
import re
import subprocess
from typing import Any

__all__ = ["install"]

_CHANGES = re.compile(
    r"\b(sudo|shutdown|reboot|halt|poweroff|kill|pkill|killall|rm|rmdir|mv|dd|mkfs\S*|wget|curl|"
    r"apt(-get)?|pip3?|conda|git|scp|rsync|aws|gsutil)\b"
)
"""Programs that end, delete, move, install or send something."""
_STARTED = subprocess.Popen.__init__


def install() -> None:
    """Let ``os.system`` and ``os.popen`` run nothing, and ``subprocess`` no such program.

    A step is tried many times, and scripts end with ``os.system("sudo shutdown")``.
    """
    os.system = _nothing
    os.popen = _asked  # type: ignore[assignment]  # what it gives is read as a file
    subprocess.Popen.__init__ = _start  # type: ignore[method-assign]


def _nothing(command: Any) -> int:
    return 0


def _asked(command: str, *args: Any, **kwargs: Any) -> Any:
    """Return the output of a command; a terminal that is asked for has a size."""
    return io.StringIO("24 80" if command == "stty size" else "")


def _start(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
    text = " ".join(map(os.fsdecode, [args] if isinstance(args, (str, bytes)) else args))
    if _CHANGES.search(text):
        msg = f"{text}: not run while a script is verified"
        raise FileNotFoundError(msg)
    _STARTED(self, args, *rest, **kwargs)
