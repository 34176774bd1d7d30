"""``x.sum()``, ``x.mean()`` and ``x.any()`` of a tensor without elements, where no rule sees it.

MindSpore 2.10 on a CPU gives what lies in memory; torch 0, nan and False. Methods alone, of eager
tensors, and where a port imports this package; ``ops.sum`` and losses give what MindSpore gives.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from mindspore import Tensor

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
