"""Truths and whole numbers that are made of others, which no gradient passes, as in torch.

MindSpore hands gradients through them (mindspore 2.10.0): ``x - x.long()`` has the gradient 0, and
a mask that is used twice raises, since truths cannot be added. Graphs of ``ms.jit`` hold the
operators themselves, and are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Tensor, mint, ops

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_WITH_SLOPES = frozenset(
    (ms.float16, ms.bfloat16, ms.float32, ms.float64, ms.complex64, ms.complex128)
)
_RECORDED = "_requires_grad"  # not public: without it all are cut, which takes longer
_OPERATORS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_COMPARISONS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "not_equal"),
    *("less", "less_equal", "greater", "greater_equal", "isclose"),
    *("isnan", "isinf", "isfinite", "isneginf", "isposinf"),
    *("logical_and", "logical_or", "logical_xor", "logical_not"),
)


def _flat(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return it without the gradients of what it returns, where that is a tensor of no slope."""

    def answered(*args: Any, **settings: Any) -> Any:
        made = function(*args, **settings)
        if isinstance(made, Tensor) and made.dtype not in _WITH_SLOPES:
            return ops.stop_gradient(made) if getattr(made, _RECORDED, True) else made
        return made

    return answered


for _name in (*_OPERATORS, *_COMPARISONS, "to"):
    if hasattr(Tensor, _name):
        setattr(Tensor, _name, _flat(getattr(Tensor, _name)))
for _home in (mint, ops):
    for _name in (*_COMPARISONS, "equal", "cast"):
        if hasattr(_home, _name):
            setattr(_home, _name, _flat(getattr(_home, _name)))
