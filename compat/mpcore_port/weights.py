"""The weights of a script that was ported: ``mpcore.convert``, by its earlier name."""

from __future__ import annotations

from mpcore.convert.command import convert_weights
from mpcore.convert.report import Converted
from mpcore.convert.run import convert

__all__ = ["Converted", "convert", "convert_weights"]
