"""Weights of one framework as files of another: ``mpcore convert-weights``, also in code."""

from mpcore.tools.convert.report import Converted
from mpcore.tools.convert.run import Options, convert

__all__ = ["Converted", "Options", "convert"]
