"""What leaves a script while it is verified: no command that changes a machine, no connection."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
from typing import Any

__all__ = ["install"]

_CHANGES = re.compile(
    r"\b(sudo|shutdown|reboot|halt|poweroff|kill|pkill|killall|rm|rmdir|mv|dd|mkfs\S*|wget|curl|"
    r"apt(-get)?|pip3?|conda|git|scp|rsync|aws|gsutil)\b"
)
"""Programs that end, delete, move, install or send something."""
_STARTED = subprocess.Popen.__init__
_ADDRESSES = socket.getaddrinfo
_HERE = re.compile(r"localhost(\.\w+)*|127(\.\d+){3}|::1|0\.0\.0\.0|::|")
"""Names of this machine; "" is all of its addresses."""


def install() -> None:
    """Let ``os.system`` and ``os.popen`` run nothing, and ``subprocess`` no such program.

    A step is tried many times, and scripts end with ``os.system("sudo shutdown")``. No other
    machine is found or connected to: weights would be downloaded for each try.
    """
    socket.getaddrinfo = _addresses
    socket.socket.connect = _connecting(socket.socket.connect)  # type: ignore[method-assign]
    socket.socket.connect_ex = _connecting(  # type: ignore[method-assign]
        socket.socket.connect_ex
    )
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


def _is_here(host: Any) -> bool:
    """Return whether a host is this machine."""
    name = os.fsdecode(host) if isinstance(host, (str, bytes)) else host
    return name is None or (isinstance(name, str) and bool(_HERE.fullmatch(name)))


def _addresses(host: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the addresses of this machine alone."""
    if not _is_here(host) and host != socket.gethostname():
        msg = f"{host}: no other machine is asked while a script is verified"
        raise socket.gaierror(socket.EAI_NONAME, msg)
    return _ADDRESSES(host, *args, **kwargs)


def _connecting(connect: Any) -> Any:
    def connected(one: Any, address: Any) -> Any:
        there = address[0] if isinstance(address, tuple) else ""  # a name of a file is here
        own = _is_here(there) or there == socket.gethostname()
        if not own:
            msg = f"{there}: no connection is made while a script is verified"
            raise ConnectionRefusedError(msg)
        return connect(one, address)

    return connected
