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
        place = place if place.dtype == bool else place.tolist()
        return Tensor(place) if isinstance(place, np.ndarray) else _of_python(place)
    if isinstance(place, slice):
        bounds = (place.start, place.stop, place.step)
        if any(isinstance(bound, np.generic) for bound in bounds):
            return slice(*(_of_python(bound) for bound in bounds))
    elif isinstance(place, tuple):
        return tuple(_of_python(one) for one in place)
    elif isinstance(place, list):
        return [_of_python(one) for one in place] or slice(0, 0)  # it takes no list of nothing
    return place


def _getitem(self: Any, place: Any) -> Any:
    return _OF_TENSORS[0](self, place if type(place) is int else _of_python(place))


def _setitem(self: Any, place: Any, value: Any) -> None:
    _OF_TENSORS[1](self, place if type(place) is int else _of_python(place), value)


Tensor.__getitem__ = _getitem
Tensor.__setitem__ = _setitem
