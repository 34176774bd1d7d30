"""Executable reference in numpy: what every other backend is tested against."""

from mpcore_numpy.amp import NumpyAmp
from mpcore_numpy.ascend import EmulatedAscend, emulated_ascend
from mpcore_numpy.backend import NumpyBackend
from mpcore_numpy.model import SGD, Adam, Model

__all__ = [
    "SGD",
    "Adam",
    "EmulatedAscend",
    "Model",
    "NumpyAmp",
    "NumpyBackend",
    "emulated_ascend",
]
