"""The CPU of this machine, and the memory of this process, as the system tells them."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

__all__ = ["cpu_here", "read_cpu", "resident"]

_FLAG = re.compile(r"(avx2|avx512f|avx512_(bf16|fp16|vnni)|amx_\w+|avx_vnni|f16c|s?v?e?bf16|\w+hp)")


@cache
def cpu_here() -> tuple[str, tuple[str, ...] | None]:
    """Return the model of this CPU and its flags that matter; see ``read_cpu``."""
    path = Path("/proc/cpuinfo")
    return read_cpu(path.read_text(encoding="utf-8", errors="replace") if path.exists() else "")


def read_cpu(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Return the model and the flags that matter from the text of Linux's /proc/cpuinfo.

    Flags are None if the text has none: nothing is known then. x86 calls them flags, Arm
    Features; Arm has no model name.
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    listed = fields.get("flags", fields.get("Features"))
    if listed is None:
        return fields.get("model name", ""), None
    return fields.get("model name", ""), tuple(f for f in listed.split() if _FLAG.fullmatch(f))


def resident() -> tuple[int | None, int | None]:
    """Return the bytes of memory this process has now and had at most; None where nothing tells."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss: Linux hands the peak of the parent's memory down to its children.
        lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
        found = dict(line.split(":", 1) for line in lines if ":" in line)
        now, most = (found.get(key, "").split() for key in ("VmRSS", "VmHWM"))
        return tuple(int(text[0]) * 1024 if text else None for text in (now, most))  # type: ignore[return-value]
    try:
        import resource
    except ImportError:  # not on Windows
        return None, None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None, peak if sys.platform == "darwin" else peak * 1024
