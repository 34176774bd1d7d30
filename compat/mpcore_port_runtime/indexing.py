"""Numbers and arrays of numpy between a tensor's brackets, as torch's tensors take them."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor

__all__: list[str] = []

_OF_TENSORS = Tensor.__getitem__, Tensor.__setitem__


def _of_python(place: Any) -> Any:
    """Return a place of Python's, or a tensor of truths, for one of numpy's."""
    if isinstance(place, np.generic):
        return place.item()
    if isinstance(place, np.ndarray):
        if not place.size and place.ndim == 1:
            return slice(0, 0)  # MindSpore takes no list of nothing
        return Tensor(place) if place.dtype == bool else place.tolist()
    if isinstance(place, slice):
        bounds = (place.start, place.stop, place.step)
        if any(isinstance(bound, np.generic) for bound in bounds):
            return slice(*(_of_python(bound) for bound in bounds))
    elif isinstance(place, tuple):
        return tuple(_of_python(one) for one in place)
    elif isinstance(place, list) and any(isinstance(one, np.generic | np.ndarray) for one in place):
        return [_of_python(one) for one in place]
    return place


def _getitem(self: Any, place: Any) -> Any:
    return _OF_TENSORS[0](self, place if type(place) is int else _of_python(place))


def _setitem(self: Any, place: Any, value: Any) -> None:
    _OF_TENSORS[1](self, place if type(place) is int else _of_python(place), value)


Tensor.__getitem__ = _getitem
Tensor.__setitem__ = _setitem
