"""From two inspected steps to the first difference and its cause."""

from mpcore.tools.divergence.evidence import Evidence, collect
from mpcore.tools.divergence.files import load, save
from mpcore.tools.divergence.find import Verdict, find, which_is_wrong
from mpcore.tools.divergence.first import First
from mpcore.tools.divergence.kinks import kink_proof
from mpcore.tools.divergence.root_cause import KINDS, RootCause
from mpcore.tools.divergence.rows import Row

__all__ = [
    "KINDS",
    "Evidence",
    "First",
    "RootCause",
    "Row",
    "Verdict",
    "collect",
    "find",
    "kink_proof",
    "load",
    "save",
    "which_is_wrong",
]
