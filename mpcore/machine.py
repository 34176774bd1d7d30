"""The CPU of this machine, as the system tells it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["cpu_here", "read_cpu"]

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
