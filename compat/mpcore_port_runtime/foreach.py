"""torch's functions on lists of tensors, ``torch._foreach_mul_`` and the like, one by one.

Source: the fallbacks of ATen/native/ForeachOpsKernels.cpp, torch 2.13.0: each does to every tensor
what the function of its name does. Numbers and tensors without axes are given to all; lists of
numbers or of tensors go along.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Tensor, ops

from mpcore_port_runtime.in_place import put

__all__ = [
    "foreach_abs",
    "foreach_add",
    "foreach_add_",
    "foreach_addcdiv",
    "foreach_addcdiv_",
    "foreach_addcmul",
    "foreach_addcmul_",
    "foreach_copy_",
    "foreach_div",
    "foreach_div_",
    "foreach_lerp",
    "foreach_lerp_",
    "foreach_mul",
    "foreach_mul_",
    "foreach_neg",
    "foreach_norm",
    "foreach_sqrt",
    "foreach_sqrt_",
    "foreach_sub",
    "foreach_sub_",
    "foreach_zero_",
]


def _given(value: Any, place: int) -> Any:
    return value[place] if isinstance(value, Sequence) else value


def _each(function: Callable[..., Any], tensors: Sequence[Any], *given: Any) -> list[Any]:
    return [function(one, *(_given(v, place) for v in given)) for place, one in enumerate(tensors)]


def _in_place(function: Callable[..., Any], tensors: Sequence[Any], *given: Any) -> None:
    for place, one in enumerate(tensors):
        put(one, function(_value(one), *(_value(_given(v, place)) for v in given)))


def _value(one: Any) -> Any:
    """Return a tensor of its own: what is put back may be a view of the old values."""
    return one.copy() if isinstance(one, Tensor) else one


def _add(one: Any, other: Any, alpha: Any) -> Any:
    return one + (other if alpha == 1 else other * alpha)


def _sub(one: Any, other: Any, alpha: Any) -> Any:
    return one - (other if alpha == 1 else other * alpha)


def _addcmul(one: Any, first: Any, second: Any, value: Any) -> Any:
    return one + first * second * value


def _addcdiv(one: Any, first: Any, second: Any, value: Any) -> Any:
    return one + first / second * value


def foreach_add(self: Sequence[Any], other: Any, *, alpha: Any = 1) -> list[Any]:
    """Return ``torch._foreach_add``."""
    return _each(_add, self, other, alpha)


def foreach_add_(self: Sequence[Any], other: Any, *, alpha: Any = 1) -> None:
    """Add to each tensor, in place."""
    _in_place(_add, self, other, alpha)


def foreach_sub(self: Sequence[Any], other: Any, *, alpha: Any = 1) -> list[Any]:
    """Return ``torch._foreach_sub``."""
    return _each(_sub, self, other, alpha)


def foreach_sub_(self: Sequence[Any], other: Any, *, alpha: Any = 1) -> None:
    """Take from each tensor, in place."""
    _in_place(_sub, self, other, alpha)


def foreach_mul(self: Sequence[Any], other: Any) -> list[Any]:
    """Return ``torch._foreach_mul``."""
    return _each(operator.mul, self, other)


def foreach_mul_(self: Sequence[Any], other: Any) -> None:
    """Multiply each tensor, in place."""
    _in_place(operator.mul, self, other)


def foreach_div(self: Sequence[Any], other: Any) -> list[Any]:
    """Return ``torch._foreach_div``."""
    return _each(operator.truediv, self, other)


def foreach_div_(self: Sequence[Any], other: Any) -> None:
    """Divide each tensor, in place."""
    _in_place(operator.truediv, self, other)


def foreach_lerp(self: Sequence[Any], tensors1: Sequence[Any], weight: Any) -> list[Any]:
    """Return ``torch._foreach_lerp``."""
    return _each(ops.lerp, self, tensors1, weight)


def foreach_lerp_(self: Sequence[Any], tensors1: Sequence[Any], weight: Any) -> None:
    """Move each tensor towards another by a share of the way, in place."""
    _in_place(ops.lerp, self, tensors1, weight)


def foreach_addcmul(
    self: Sequence[Any], tensor1: Sequence[Any], tensor2: Sequence[Any], value: Any = 1
) -> list[Any]:
    """Return ``torch._foreach_addcmul``."""
    return _each(_addcmul, self, tensor1, tensor2, value)


def foreach_addcmul_(
    self: Sequence[Any], tensor1: Sequence[Any], tensor2: Sequence[Any], value: Any = 1
) -> None:
    """Add a product of two tensors to each, in place."""
    _in_place(_addcmul, self, tensor1, tensor2, value)


def foreach_addcdiv(
    self: Sequence[Any], tensor1: Sequence[Any], tensor2: Sequence[Any], value: Any = 1
) -> list[Any]:
    """Return ``torch._foreach_addcdiv``."""
    return _each(_addcdiv, self, tensor1, tensor2, value)


def foreach_addcdiv_(
    self: Sequence[Any], tensor1: Sequence[Any], tensor2: Sequence[Any], value: Any = 1
) -> None:
    """Add a quotient of two tensors to each, in place."""
    _in_place(_addcdiv, self, tensor1, tensor2, value)


def foreach_copy_(self: Sequence[Any], src: Sequence[Any], non_blocking: bool = False) -> None:
    """Give each tensor the values of another; ``non_blocking`` means nothing here."""
    del non_blocking
    _in_place(lambda _, other: other, self, src)


def foreach_zero_(self: Sequence[Any]) -> None:
    """Give each tensor zeros."""
    _in_place(ops.zeros_like, self)


def foreach_sqrt(self: Sequence[Any]) -> list[Any]:
    """Return ``torch._foreach_sqrt``."""
    return _each(ops.sqrt, self)


def foreach_sqrt_(self: Sequence[Any]) -> None:
    """Give each tensor its square root."""
    _in_place(ops.sqrt, self)


def foreach_abs(self: Sequence[Any]) -> list[Any]:
    """Return ``torch._foreach_abs``."""
    return _each(ops.abs, self)


def foreach_neg(self: Sequence[Any]) -> list[Any]:
    """Return ``torch._foreach_neg``."""
    return _each(ops.neg, self)


def foreach_norm(self: Sequence[Any], ord: float = 2) -> list[Any]:  # torch's name
    """Return the norm of each tensor, of order 1, 2 or inf."""
    if ord not in (1, 2, float("inf")):
        msg = f"`ord` must be 1, 2 or inf, got {ord}"
        raise ValueError(msg)
    of_order = {1: lambda x: x.abs().sum(), 2: lambda x: (x * x).sum().sqrt()}
    return _each(of_order.get(int(ord) if ord < 3 else 0, lambda x: x.abs().max()), self)
