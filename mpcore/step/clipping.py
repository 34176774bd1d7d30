"""The factor that brings gradients down to a norm: one formula, run verbatim everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["clip_factor"]

_SMALL = 1e-6  # keeps the factor finite where every gradient is 0; the source's own number


def clip_factor(total: Any, clip_norm: float, where: Callable[[Any, Any, Any], Any]) -> Any:
    """Return what to multiply gradients by so that their norm is at most ``clip_norm``.

    Args:
        total: L2 norm of all of them, float32, shape (); left untouched.
        clip_norm: the largest that is allowed, > 0.
        where: the framework's ``where(condition, x, y)``.

    Returns:
        Dimensionless, at most 1; what it is for a NaN does not matter, as no step is taken then.

    Source: ``torch.nn.utils.clip_grad_norm_``, torch/nn/utils/clip_grad.py of torch 2.13.0:
    ``clip_coef = max_norm / (total_norm + 1e-6)``, clamped to 1.

    Examples:
        >>> def pick(condition, x, y):
        ...     return x if condition else y
        >>> clip_factor(0.999999, 0.25, pick), clip_factor(0.0, 1.0, pick)
        (0.25, 1.0)
    """
    coefficient = clip_norm / (total + _SMALL)
    return where(coefficient < 1.0, coefficient, 1.0)
