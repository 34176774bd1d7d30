"""Weights of one framework as files of another: ``mpcore convert-weights``, also in code."""

from mpcore.convert.report import Converted
from mpcore.convert.run import Options, convert

__all__ = ["Converted", "Options", "convert"]
