"""What stands between a tensor's brackets, as torch's tensors take it.

Numbers and arrays of numpy are taken as Python's, tensors of uint8 as truths. A number beside a
tensor takes its axis away first, wherever it stands: ``x[1, :, places]`` is ``x[1][:, places]``.
MindSpore has numpy's way, in which it is a place, too, and the axes of places that stand apart come
first. What is given to a Parameter is assigned to it: behind ``p[:n] = x`` of all its n rows
MindSpore takes it for a view, to which nothing can be assigned.
Source: torch/csrc/autograd/python_variable_indexing.cpp (applySlicing), torch 2.9.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

__all__: list[str] = []

_OF_TENSORS = Tensor.__getitem__, Tensor.__setitem__


def _of_python(place: Any) -> Any:
    """Return a place of Python's, or a tensor of truths, for one of numpy's."""
    if isinstance(place, Tensor):
        return place.astype(ms.bool_) if place.dtype == ms.uint8 else place
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
        return tuple(part for one in place for part in _apart(_of_python(one)))
    elif isinstance(place, list):
        return [_of_python(one) for one in place] or slice(0, 0)  # it takes no list of nothing
    return place


def _apart(place: Any) -> tuple[Any, ...]:
    """Return what stands for a place beside others: of truths in several axes, their numbers.

    MindSpore 2.10.0 takes one element of what follows such truths alone (``x[mask, :]``).
    """
    if not isinstance(place, Tensor) or place.dtype != ms.bool_ or place.ndim < 2:
        return (place,)
    return tuple(Tensor(numbers) for numbers in np.nonzero(place.asnumpy()))


def _getitem(self: Any, place: Any) -> Any:
    if type(place) is int:
        return _OF_TENSORS[0](self, place)
    place = _of_python(place)
    if type(place) is tuple and (parts := _in_turn(place, self.ndim)):
        return _OF_TENSORS[0](_OF_TENSORS[0](self, parts[0]), parts[1])
    return _OF_TENSORS[0](self, place)


def _without_ones(value: Any) -> Any:
    """Return a value without its leading axes of one: torch's is as wide without them.

    Source: torch/csrc/autograd/python_variable_indexing.cpp (slicePrefix1sSize), torch 2.9.
    """
    if not isinstance(value, Tensor) or not value.ndim or value.shape[0] != 1:
        return value
    wide = next((n for n, size in enumerate(value.shape) if size != 1), value.ndim)
    return value.reshape(value.shape[wide:])


def _setitem(self: Any, place: Any, value: Any) -> None:
    value = _without_ones(value)
    if 0 in self.shape and type(place) is not int:
        return  # there is nothing to set: MindSpore's kernels raise
    if isinstance(self, Parameter):
        fresh = ops.stop_gradient(self).copy()
        _setitem(fresh, place, value)
        ops.assign(self, fresh)
        return
    if type(place) is int:
        _OF_TENSORS[1](self, place, value)
        return
    place = _of_python(place)
    if type(place) is tuple and _is_of_none(place, self.shape):
        return
    if type(place) is tuple and (parts := _in_turn(place, self.ndim)):
        part = _OF_TENSORS[0](self, parts[0]).copy()
        _OF_TENSORS[1](part, parts[1], value)
        place, value = parts[0], part
    _OF_TENSORS[1](self, place, value)


def _is_of_none(place: tuple[Any, ...], shape: tuple[int, ...]) -> bool:
    """Return whether a slice ends before it begins: MindSpore 2.10.0 writes elsewhere then."""
    for axis, one in enumerate(place):
        if one is None or one is Ellipsis or isinstance(one, (Tensor, list, bool)):
            return False  # which axis comes next is not counted
        if isinstance(one, slice) and one.step is None and axis < len(shape):
            start, stop, _ = one.indices(shape[axis]) if _is_plain(one) else (0, 1, 1)
            if start >= stop:
                return True
    return False


def _is_plain(one: slice) -> bool:
    return all(bound is None or isinstance(bound, int) for bound in (one.start, one.stop))


def _in_turn(place: tuple[Any, ...], axes: int) -> tuple[Any, Any] | None:
    """Return places to take one after the other: numbers and slices, then tensors and lists.

    None where one look does the same: of one kind alone, or where they stand side by side.
    """
    found = [n for n, one in enumerate(place) if isinstance(one, (int, Tensor, list))]
    found = [n for n in found if not isinstance(place[n], bool)]
    numbers = [n for n in found if isinstance(place[n], int)]
    if len(numbers) in (0, len(found)) or found[-1] - found[0] == len(found) - 1:
        return None
    first: list[Any] = []
    second: list[Any] = []
    taken = sum(_axes_of(one) for one in place)
    for one in place:
        if isinstance(one, int) and not isinstance(one, bool):
            first.append(one)
        elif isinstance(one, (Tensor, list)):
            first += [slice(None)] * _axes_of(one)
            second.append(one)
        elif one is Ellipsis:
            first.append(one)
            second += [slice(None)] * (axes - taken)
        else:
            first.append(one)
            second.append(slice(None))
    return tuple(first), tuple(second)


def _axes_of(one: Any) -> int:
    """Return how many axes of a tensor a place takes: one of truths has its own number."""
    if one is None or one is Ellipsis:
        return 0
    is_mask = isinstance(one, Tensor) and one.dtype == ms.bool_
    return int(one.ndim) if is_mask else 1


Tensor.__getitem__ = _getitem
Tensor.__setitem__ = _setitem
