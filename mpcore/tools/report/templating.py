"""Where the pages' templates come from."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

__all__ = ["templates"]


def templates() -> Environment:
    """Return what finds and fills templates; the text that is put in is escaped."""
    return Environment(
        loader=PackageLoader("mpcore.tools.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
