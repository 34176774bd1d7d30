"""``x.sum()``, ``x.mean()``, ``x.any()`` and losses of no elements, where no rule sees it.

MindSpore 2.10 on a CPU gives what lies in memory; torch 0, nan and False. Methods of eager tensors,
and functions, where a port imports this package; ``ops.sum`` and layers give what MindSpore gives.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from mindspore import Tensor, ops

from mpcore_port_runtime.reductions import any_true, average, total

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []


def _of_some(native: Callable[..., Any], of_none: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return MindSpore's method, which another function stands for where there are no elements."""

    @functools.wraps(native)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or self.size:
            return native(self, *args, **kwargs)
        return of_none(self)

    return method


Tensor.sum = _of_some(Tensor.sum, total)
Tensor.mean = _of_some(Tensor.mean, average)
Tensor.any = _of_some(Tensor.any, any_true)


def _of_pairs(native: Callable[..., Any], usual: str) -> Callable[..., Any]:
    """Return MindSpore's loss of pairs, which is 0 or nan where there are none."""

    @functools.wraps(native)
    def loss(input: Any, *args: Any, **kwargs: Any) -> Any:  # torch's name
        if input.size:
            return native(input, *args, **kwargs)
        return _of_no_pairs(native, usual, input, args, kwargs)

    return loss


def _of_no_pairs(native: Any, usual: str, input: Any, args: Any, kwargs: Any) -> Any:
    said = [one for one in args if isinstance(one, str)]
    reduction = kwargs.get("reduction", said[0] if said else usual)
    if reduction == "none":
        return native(input, *args, **kwargs)
    return total(input) if reduction == "sum" else average(input)


for _name, _usual in {
    "binary_cross_entropy": "mean",
    "huber_loss": "mean",
    "l1_loss": "mean",
    "mse_loss": "mean",
    "smooth_l1_loss": "none",
}.items():
    setattr(ops, _name, _of_pairs(getattr(ops, _name), _usual))
