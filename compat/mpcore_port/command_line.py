"""What a script's ``argparse`` calls its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["option_name"]


def option_name(flags: Sequence[str], dest: str = "") -> str:
    """Return the attribute that ``add_argument(*flags, dest=dest)`` sets; "" if none is said.

    Source: ``_get_optional_kwargs`` in Lib/argparse.py, CPython 3.12: the first long flag, else
    the first one.
    """
    long = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
    return (dest or long.lstrip("-")).replace("-", "_")
