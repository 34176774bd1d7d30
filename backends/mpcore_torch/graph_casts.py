"""What a plan puts between calls: casts, casts with several outputs, clipped gradients."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SCALE", "cast", "clip", "fork", "native", "one_forward"]

_ONCE: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}
SCALE = [1.0]
"""The loss scale that the gradients of the backward pass hold which runs, if one does."""


@contextlib.contextmanager
def one_forward() -> Iterator[None]:
    """Let the casts of a parameter be one as long as this is open, as autocast's cache does."""
    if _ONCE.get((0, torch.float32)) is not None:  # another forward pass is inside of this one
        yield
        return
    mark = torch.empty(0)
    _ONCE[0, torch.float32] = (mark, mark)
    try:
        yield
    finally:
        _ONCE.clear()


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``x`` as ``dtype``; a leaf that is trained is cast once in a forward pass."""
    if x.dtype == dtype:
        return x
    kept = x.is_leaf and x.requires_grad and x.dtype == torch.float32 and torch.is_grad_enabled()
    if not kept or not _ONCE or x._is_view() or dtype == torch.float32:
        return x.to(dtype)
    found = _ONCE.get((id(x), dtype))
    if found is None or found[0] is not x:
        found = _ONCE[id(x), dtype] = (x, x.to(dtype))
    return found[1]


class _Fork(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed
    """One cast, several outputs; their gradients are added up as single casts' would be."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dtype: torch.dtype, count: int) -> Any:
        """Cast once."""
        ctx.dtype = x.dtype
        made = x.to(dtype)
        return (made, *[made.view(made.shape) for _ in range(count - 1)])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Add up in the dtype of what was cast, the last user's first, as autograd does."""
        total: Any = None
        own = False
        for grad in reversed(grads):
            if grad is None:
                continue
            wide = grad.to(ctx.dtype)
            if total is None:
                total, own = wide, wide is not grad
            else:
                total = total.add_(wide) if own else total + wide
        return total, None, None


def fork(x: torch.Tensor, dtype: torch.dtype, count: int) -> Any:
    """Return ``count`` casts of ``x`` that share their memory."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return (x.to(dtype),) * count
    return _Fork.apply(x, dtype, count)


class _Clip(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed
    """The identity, whose backward pass bounds the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, norm: float | None, value: float | None) -> Any:
        """Hand on what comes in."""
        ctx.norm, ctx.value = norm, value
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Bound what is sent on; the bound is one of gradients without a loss scale."""
        if ctx.norm is None:
            bound = ctx.value * SCALE[0]
            return grad.clamp(-bound, bound), None, None
        bound = ctx.norm * SCALE[0]
        size = torch.linalg.vector_norm(grad, dtype=torch.float32)
        # A norm that is not finite must stay so: the step is to notice it.
        factor = torch.where(size.isfinite(), (bound / size).clamp(max=1.0), 1.0)
        return (grad * factor).to(grad.dtype), None, None


def clip(x: torch.Tensor, norm: float | None = None, value: float | None = None) -> torch.Tensor:
    """Return ``x``; its gradient is clipped to a norm, or each of its elements to a size."""
    found: torch.Tensor = _Clip.apply(x, norm, value)
    return found


def native(target: Any, device: str, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
    """Make one call under the framework's own list."""
    with torch.autocast(device, dtype):
        return target(*args, **kwargs)
