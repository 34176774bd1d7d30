"""From two inspected steps to the first difference and its cause."""

from mpcore.causes.cause import KINDS, Cause
from mpcore.causes.evidence import Evidence, collect
from mpcore.causes.files import load, save
from mpcore.causes.find import Verdict, find, which_is_wrong
from mpcore.causes.part import First
from mpcore.causes.rows import Row

__all__ = [
    "KINDS",
    "Cause",
    "Evidence",
    "First",
    "Row",
    "Verdict",
    "collect",
    "find",
    "load",
    "save",
    "which_is_wrong",
]
