"""What star imports bring, by module: public names of torch's modules, and of timm's.

``timm_names.txt`` has a line for each module: what ``from ... import *`` brings of timm 0.4.12,
0.5.4, 0.6.13, 0.9.16, 1.0.9 and 1.0.31, together; modules below it are left out.
"""

from __future__ import annotations

from importlib import resources

from mpcore_port.torch_names import EXPORTS

__all__ = ["STARRED", "is_told"]


def _of_timm() -> dict[str, frozenset[str]]:
    text = resources.files("mpcore_port").joinpath("timm_names.txt").read_text(encoding="utf-8")
    lines = (line.partition(":") for line in text.splitlines() if line)
    return {module: frozenset(names.split()) for module, _, names in lines}


_TIMM = _of_timm()
STARRED = {**EXPORTS, **_TIMM}
"""Public names by module."""


def is_told(module: str, stars: list[str]) -> bool:
    """Return whether names of a star are surely a module's own: no unknown star stands behind it.

    Of torch's nobody gives the names another meaning.
    """
    if module not in _TIMM:
        return module in STARRED
    behind = stars[len(stars) - stars[::-1].index(module) :]
    return all(other in STARRED for other in behind)
