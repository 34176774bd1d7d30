"""A tensor beside a number or an array of numpy, extremes of truths, and answers kept as values.

MindSpore says of an array of numpy that it differs, all at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops

from mpcore_port_runtime.rarer_functions import bitwise_not

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["answered"]


def answered(input: Any, method: str, *other: Any) -> Any:
    """Return ones and zeros in the dtype of ``input``: ``x.gt_(0)`` leaves no bools in torch."""
    if method.startswith("logical"):
        other = tuple(one.astype(ms.bool_) for one in other)
        return getattr(ops, method)(input.astype(ms.bool_), *other).astype(input.dtype)
    return getattr(mint, method)(input, *other).astype(input.dtype)


def _with_numpys(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a comparison that takes numpy's numbers and arrays as torch's tensors do."""

    def compared(self: Any, other: Any) -> Any:
        if isinstance(other, np.generic):
            other = other.item()
        elif isinstance(other, np.ndarray):
            other = Tensor(other)
        return compare(self, other)

    return compared


Tensor.__eq__ = _with_numpys(Tensor.__eq__)
Tensor.__ne__ = _with_numpys(Tensor.__ne__)


_invert = Tensor.__invert__


def _inverted(self: Any) -> Any:
    """Return ``~x``: of whole numbers -1 - x, which MindSpore takes for truths."""
    return _invert(self) if self.dtype == ms.bool_ else bitwise_not(self)


def _shifted(shift: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return ``x << n`` and ``x >> n``, which MindSpore has as functions alone."""
    return lambda self, other: shift(self, other)


Tensor.__invert__ = _inverted
Tensor.__lshift__ = _shifted(ops.bitwise_left_shift)
Tensor.__rshift__ = _shifted(ops.bitwise_right_shift)


def _of_truths(extreme: Callable[..., Any], elements: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``max`` or ``min`` that takes truths along an axis: MindSpore has no such kernel.

    Of another tensor it is each element's, as in torch.
    """

    def found(self: Any, *args: Any, **words: Any) -> Any:
        given = (*args, *words.values())
        if len(given) == 1 and isinstance(given[0], Tensor) and given[0].is_floating_point():
            return elements(self, given[0])
        if self.dtype != ms.bool_:
            return extreme(self, *args, **words)
        made = extreme(self.astype(ms.int32), *args, **words)
        if isinstance(made, Tensor):
            return made.astype(ms.bool_)
        return (made[0].astype(ms.bool_), *made[1:])

    return found


Tensor.max = _of_truths(Tensor.max, mint.maximum)
Tensor.min = _of_truths(Tensor.min, mint.minimum)
