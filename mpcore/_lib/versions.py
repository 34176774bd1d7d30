"""Our own version, and version numbers against bounds."""

from __future__ import annotations

import re

__all__ = ["__version__", "satisfies"]

__version__ = "0.2.0"


def satisfies(version: str, spec: str) -> bool:
    """Return whether a version's release number is in a comma-separated list of bounds.

    Pre-releases and local parts (``2.13.0+cpu``) count as their release.

    Examples:
        >>> satisfies("2.4.6", ">=2"), satisfies("2.13.0+cpu", ">=2.13,<3"), satisfies("1.26", "<2")
        (True, True, True)
    """
    own = _release(version)
    for bound in filter(None, (part.strip() for part in spec.split(","))):
        found = re.fullmatch(r"(<|<=|>|>=|==)\s*([\d.]+)", bound)
        if found is None:
            msg = f"`spec` must be bounds such as '>=2,<3', got {bound!r}"
            raise ValueError(msg)
        sign, other = found[1], _release(found[2])
        order = (own > other) - (own < other)
        if order not in {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1), "==": (0,)}[sign]:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else [0]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
