"""Functions at the edge of where they have a slope, as torch has them: 0, and not NaN.

MindSpore 2.10.0 has NaN on CPU for the gradients of ``x ** 0``, ``atan2(0, 0)`` and products along
an axis that a zero is in, and for values of ``logsumexp`` of ``-inf`` alone and ``xlogy(0, 0)``.
Graphs of ``ms.jit`` hold methods of tensors themselves, and leave those alone.
Sources: aten/src/ATen/native/ReduceOps.cpp (logsumexp) and tools/autograd/derivatives.yaml (pow,
atan2), FunctionsManual.cpp (cumprod_backward), torch 2.13.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore import Tensor, mint, ops

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_RECORDED = "_requires_grad"  # not public: without it gradients are taken to pass


def _logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    """Return the logarithm of a sum of powers: ``-inf`` of nothing else."""
    most = ops.stop_gradient(ops.amax(input, dim, True))
    most = ops.where(ops.isinf(most), ops.zeros_like(most), most)
    total = ops.exp(input - most).sum(dim, keepdims=True)
    made = ops.log(total) + most
    return made if keepdim else ops.squeeze(made, dim)


def _xlogy(input: Any, other: Any) -> Any:
    """Return ``input * log(other)``, 0 where the first is 0."""
    if not isinstance(input, Tensor) or not isinstance(other, Tensor):
        return _XLOGY(input, other)
    none = ops.logical_and(input == 0, other <= 0)
    safe = ops.where(none, ops.ones_like(other), other)
    return input * ops.log(safe)


def _with_slope(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an ``atan2`` that has the slope 0 at the origin."""

    def taken(input: Any, other: Any) -> Any:
        if not isinstance(input, Tensor) or not isinstance(other, Tensor):
            return function(input, other)
        if not (getattr(input, _RECORDED, True) or getattr(other, _RECORDED, True)):
            return function(input, other)
        origin = ops.logical_and(input == 0, other == 0)
        up = ops.where(origin, ops.stop_gradient(input), input)
        return function(up, ops.where(origin, ops.ones_like(other), other))

    return taken


def _products(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``cumprod`` whose gradients pass zeros, too: one product after the other there."""

    def taken(input: Any, dim: int, *args: Any, **settings: Any) -> Any:
        graded = isinstance(input, Tensor) and getattr(input, _RECORDED, True)
        if not graded or args or any(one is not None for one in settings.values()):
            return function(input, dim, *args, **settings)
        if not bool((input == 0).any()):
            return function(input, dim)
        rows = list(ops.unstack(input, dim))
        for place in range(1, len(rows)):
            rows[place] = rows[place - 1] * rows[place]
        return ops.stack(rows, dim)

    return taken


def _power(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a power whose slope is 0 where the exponent is the number 0."""

    def taken(input: Any, exponent: Any) -> Any:
        if type(exponent) in (int, float) and exponent == 0 and isinstance(input, Tensor):
            return function(ops.where(input == 0, ops.ones_like(input), input), exponent)
        return function(input, exponent)

    return taken


def _replace(name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    for home in (Tensor, mint, ops):
        if hasattr(home, name):
            setattr(home, name, change(getattr(home, name)))


_XLOGY = ops.xlogy
_replace("logsumexp", lambda _: _logsumexp)
_replace("xlogy", lambda _: _xlogy)
_replace("atan2", _with_slope)
_replace("arctan2", _with_slope)
_replace("cumprod", _products)
_replace("pow", _power)
Tensor.__pow__ = _power(Tensor.__pow__)
