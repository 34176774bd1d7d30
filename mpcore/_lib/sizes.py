"""Numbers of bytes as text, and back."""

from __future__ import annotations

import re

from mpcore.errors import PolicyError

__all__ = ["parse_bytes", "show_bytes"]

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12} | {
    f"{prefix}ib": 2 ** (10 * power) for power, prefix in enumerate("kmgt", start=1)
}


def parse_bytes(size: str | float) -> int:
    """Return a number of bytes.

    Examples:
        >>> parse_bytes("1.5GB"), parse_bytes("2 MiB"), parse_bytes(1024)
        (1500000000, 2097152, 1024)
    """
    text = str(size).strip().lower()
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?(?:e\+?[0-9]{1,2})?)\s*([kmgt]?i?b?)", text)
    unit = found.group(2) if found else ""
    unit = unit if unit in _UNITS else f"{unit}b" if f"{unit}b" in _UNITS else unit
    unit = "" if unit == "b" else unit
    if isinstance(size, bool) or found is None or unit not in _UNITS or float(found.group(1)) <= 0:
        msg = f"`budget` must be a size > 0 such as '1.5GB' or '800 MiB', got {size!r}"
        raise PolicyError(msg)
    return int(float(found.group(1)) * _UNITS[unit])


def show_bytes(count: float) -> str:
    """Return a size for people, in powers of ten.

    Examples:
        >>> show_bytes(1_500_000_000), show_bytes(812)
        ('1.50 GB', '812 B')
    """
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        size = count / unit
        if size >= 0.9995:
            return f"{size:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f} {name}"
    return f"{count:.0f} B"
