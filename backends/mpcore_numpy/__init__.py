"""Executable reference in numpy: what every other backend is tested against."""

from mpcore_numpy.backend import NumpyBackend
from mpcore_numpy.model import SGD, Adam, Model
from mpcore_numpy.step import NumpyAmp

__all__ = ["SGD", "Adam", "Model", "NumpyAmp", "NumpyBackend"]
