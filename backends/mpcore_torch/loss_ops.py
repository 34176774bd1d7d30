"""The neutral ops of losses in torch; see ``mpcore.backend.loss_ops.LossOps``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["TorchLossOps"]


class TorchLossOps:
    """Implements ``mpcore.backend.loss_ops.LossOps``."""

    abs = staticmethod(torch.abs)
    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    sqrt = staticmethod(torch.sqrt)
    square = staticmethod(torch.square)
    tanh = staticmethod(torch.tanh)
    sigmoid = staticmethod(torch.sigmoid)
    relu = staticmethod(torch.relu)
    softplus = staticmethod(functional.softplus)
    maximum = staticmethod(torch.maximum)
    minimum = staticmethod(torch.minimum)
    clip = staticmethod(torch.clip)
    where = staticmethod(torch.where)

    def log_softmax(self, x: Tensor, axis: int = -1) -> Tensor:
        """Logarithm of the softmax."""
        return torch.log_softmax(x, axis)

    def mean(self, x: Tensor, axis: int | None = None) -> Tensor:
        """Mean."""
        return x.mean() if axis is None else x.mean(axis)

    def sum(self, x: Tensor, axis: int | None = None) -> Tensor:
        """Sum."""
        return x.sum() if axis is None else x.sum(axis)

    def max(self, x: Tensor, axis: int) -> Tensor:
        """Largest value along an axis; of equal ones each gets a part of the gradient."""
        return x.amax(axis)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Other axes, the same values in the same order."""
        return x.reshape(tuple(shape))

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Tensors one behind the other."""
        return torch.cat(tuple(tensors), axis)

    def float32(self, x: Tensor) -> Tensor:
        """Return ``x`` as float32."""
        return x.float()

    def one_hot(self, classes: Tensor, count: int) -> Tensor:
        """A last axis of 0 and 1."""
        return functional.one_hot(classes, count).float()

    def stop_gradient(self, x: Tensor) -> Tensor:
        """Return the value alone."""
        return x.detach()

    def cross_entropy(
        self, logits: Tensor, classes: Tensor, label_smoothing: float = 0.0, axis: int = -1
    ) -> Tensor:
        """Mean over all targets."""
        last = logits.movedim(axis, -1)
        flat = last.reshape(-1, last.shape[-1])
        return functional.cross_entropy(flat, classes.reshape(-1), label_smoothing=label_smoothing)

    def binary_cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean over all targets."""
        return functional.binary_cross_entropy_with_logits(logits, targets)
