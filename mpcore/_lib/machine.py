"""The CPU of this machine, and the memory of this process, as the system tells them."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from functools import cache
from pathlib import Path

from mpcore._lib.callers import warn_user

__all__ = [
    "cpu_here",
    "cpuinfo",
    "keep_freed_memory",
    "kept_memory_variables",
    "onednn_variables",
    "read_cpu",
    "resident",
    "spare_onednn",
    "without_tiles",
]

# CPUID leaf that says how large AMX's tiles are (Intel SDM, volume 2, CPUID).
_PALETTE = 0x1D
# What oneDNN may use instead, the best first, each with the CPU's flag that it needs.
_WITHOUT_AMX = (
    ("avx512_fp16", "AVX512_CORE_FP16"),
    ("avx512_bf16", "AVX512_CORE_BF16"),
    ("avx512f", "AVX512_CORE"),
)
_CAPS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")

# Of glibc's mallopt (malloc.h), and the largest that its allocator comes to by itself.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MMAP_MOST = 32 << 20

_FLAG = re.compile(r"(avx2|avx512f|avx512_(bf16|fp16|vnni)|amx_\w+|avx_vnni|f16c|s?v?e?bf16|\w+hp)")


@cache
def cpu_here() -> tuple[str, tuple[str, ...] | None]:
    """Return the model of this CPU and its flags that matter; see ``read_cpu``."""
    return read_cpu(cpuinfo())


def read_cpu(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Return the model and the flags that matter from the text of Linux's /proc/cpuinfo.

    Flags are None if the text has none: nothing is known then. x86 calls them flags, Arm
    Features; Arm has no model name. AMX is left out ``without_tiles``.
    """
    fields = _fields(text)
    listed = fields.get("flags", fields.get("Features"))
    if listed is None:
        return fields.get("model name", ""), None
    flags = [flag for flag in listed.split() if _FLAG.fullmatch(flag)]
    if without_tiles(text):
        flags = [flag for flag in flags if not flag.startswith("amx_")]
    return fields.get("model name", ""), tuple(flags)


def without_tiles(text: str) -> bool:
    """Return whether a CPU announces AMX and does not say how large its tiles are.

    Some virtual machines hand on the flags and cut CPUID off below leaf 1DH. oneDNN 3 asks that
    leaf for rows and bytes of a tile, configures tiles of no rows, and the first ``tilezero`` ends
    the process with SIGILL (measured: torch 2.13.0 and TensorFlow 2.21.0, bfloat16 products).

    Args:
        text: of Linux's /proc/cpuinfo.
    """
    fields = _fields(text)
    leaves = fields.get("cpuid level", "")
    return (
        "amx_tile" in fields.get("flags", "").split()
        and leaves.isdecimal()
        and int(leaves) < _PALETTE
    )


def onednn_variables() -> dict[str, str]:
    """Return the environment that keeps oneDNN off such tiles; empty where nothing is to be said.

    A user's own ONEDNN_MAX_CPU_ISA stands.
    """
    text = cpuinfo()
    if not without_tiles(text) or any(name in os.environ for name in _CAPS):
        return {}
    flags = _fields(text)["flags"].split()
    best = [cap for flag, cap in _WITHOUT_AMX if flag in flags]
    return {_CAPS[0]: best[0]} if best else {}


def spare_onednn() -> None:
    """Set ``onednn_variables`` in this process, and say so; oneDNN reads them at its first use."""
    for name, value in onednn_variables().items():
        os.environ[name] = value
        msg = (
            "this machine announces AMX and does not describe its tiles (CPUID ends below leaf "
            "1DH): oneDNN would end the process with SIGILL in bfloat16. mpcore sets "
            f"{name}={value} for this process and those it starts; set it yourself before you "
            "compute anything"
        )
        warn_user(msg, "importlib")


@cache
def cpuinfo() -> str:
    """Return the text of /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _fields(text: str) -> dict[str, str]:
    """Return the fields of the first CPU that is listed."""
    fields: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


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


def kept_memory_variables() -> dict[str, str]:
    """Return the environment in which glibc keeps what is freed; none where it is not glibc's."""
    if platform.libc_ver()[0] != "glibc":
        return {}
    thresholds = {"MALLOC_MMAP_THRESHOLD_": _MMAP_MOST, "MALLOC_TRIM_THRESHOLD_": 2 * _MMAP_MOST}
    return {name: str(value) for name, value in thresholds.items()}


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed, for good, as it does once a block of 32 MiB was; if it can.

    Until then each process hands blocks back or keeps them as its sizes happen to come, and a step
    that gets them anew has a thousand page faults. Return whether it is so now.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another allocator, or no such handle
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MMAP_MOST) and mallopt(_TRIM_THRESHOLD, 2 * _MMAP_MOST))
