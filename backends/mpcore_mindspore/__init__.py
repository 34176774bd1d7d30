"""MindSpore backend: Cells on CPU, run in eager mode, under ``ms.jit`` and in GRAPH_MODE.

On Ascend it was not run: no such device was at hand. What differs there is marked in the
docstrings.
"""

from mpcore_mindspore.amp import MindsporeAmp
from mpcore_mindspore.ascend import EmulatedAscend, emulated_ascend
from mpcore_mindspore.backend import MindsporeBackend
from mpcore_mindspore.overflow import StatusRegister
from mpcore_mindspore.step import TrainCell

__all__ = [
    "EmulatedAscend",
    "MindsporeAmp",
    "MindsporeBackend",
    "StatusRegister",
    "TrainCell",
    "emulated_ascend",
]
