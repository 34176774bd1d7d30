"""The weights of a script that was ported: ``mpcore.tools.convert``, by its earlier name."""

from __future__ import annotations

from mpcore.tools.convert.command import convert_weights
from mpcore.tools.convert.report import Converted
from mpcore.tools.convert.run import convert

__all__ = ["Converted", "convert", "convert_weights"]
