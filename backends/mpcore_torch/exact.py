"""A step in float64; see ``mpcore.backend.exact.Exact``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mpcore_torch.layers import parameter_names

if TYPE_CHECKING:
    from torch import nn

__all__ = ["true_gradients", "widened"]


def widened(model: nn.Module, batch: tuple[Any, ...]) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return model and batch in float64, in which rounding is not seen."""
    return model.double(), tuple(t.double() if t.is_floating_point() else t for t in batch)


def true_gradients(model: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradients of a loss by parameter path, as ``StepResult.grads`` has them."""
    names = {p: name for p, name in parameter_names(model).items() if p.requires_grad}
    found = torch.autograd.grad(loss, list(names), allow_unused=True)
    pairs = zip(names.values(), found, strict=True)
    return {name: grad for name, grad in pairs if grad is not None}
