"""Every second row of a middle axis: MindSpore 2.10's CPU kernel of its gradient fails."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

__all__ = ["strided"]


class strided:  # noqa: N801  # read as a function: port.strided(x)[:, ::2]
    """``strided(x)[:, ::2]`` is ``x[:, ::2]``; of a tensor axes with a step are gathered."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getitem__(self, index: Any) -> Any:
        """Return the part; of what is no tensor as it does it."""
        if not isinstance(self._value, Tensor) or not isinstance(index, tuple):
            return self._value[index]
        value, rest = self._value, list(index)
        for place, axis in _axes(index, value.ndim):
            rows = range(*index[place].indices(value.shape[axis]))
            value = ops.gather(value, Tensor(list(rows), ms.int32), axis)
            rest[place] = slice(None)
        return value[tuple(rest)]


def _axes(index: tuple[Any, ...], dims: int) -> list[tuple[int, int]]:
    """Return the places of an index with a step, each with the axis that it is of."""
    named = sum(one is not None and one is not Ellipsis for one in index)
    found, axis = [], 0
    for place, one in enumerate(index):
        if isinstance(one, slice) and one.step not in (None, 1):
            found.append((place, axis))
        if one is Ellipsis:
            axis += dims - named
        elif one is not None:
            axis += 1
    return found
