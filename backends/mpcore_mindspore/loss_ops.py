"""The neutral ops of losses in MindSpore; see ``mpcore.backend.loss_ops.LossOps``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import ops

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MindsporeLossOps"]


@ms.jit_class
class MindsporeLossOps:
    """Implements ``mpcore.backend.loss_ops.LossOps``; the graph compiler reads the methods."""

    def abs(self, x: Any) -> Any:
        """Absolute value."""
        return ops.abs(x)

    def exp(self, x: Any) -> Any:
        """Exponential."""
        return ops.exp(x)

    def log(self, x: Any) -> Any:
        """Natural logarithm."""
        return ops.log(x)

    def sqrt(self, x: Any) -> Any:
        """Square root."""
        return ops.sqrt(x)

    def square(self, x: Any) -> Any:
        """Square."""
        return ops.square(x)

    def tanh(self, x: Any) -> Any:
        """Hyperbolic tangent."""
        return ops.tanh(x)

    def sigmoid(self, x: Any) -> Any:
        """1 / (1 + exp(-x))."""
        return ops.sigmoid(x)

    def relu(self, x: Any) -> Any:
        """The larger of x and 0."""
        return ops.relu(x)

    def softplus(self, x: Any) -> Any:
        """log(1 + exp(x))."""
        return ops.softplus(x)

    def log_softmax(self, x: Any, axis: int = -1) -> Any:
        """Logarithm of the softmax."""
        return ops.log_softmax(x, axis)

    def maximum(self, x: Any, y: Any) -> Any:
        """The larger of two tensors."""
        return ops.maximum(x, y)

    def minimum(self, x: Any, y: Any) -> Any:
        """The smaller of two tensors."""
        return ops.minimum(x, y)

    def clip(self, x: Any, low: float, high: float) -> Any:
        """Values outside become the limits."""
        return ops.clamp(x, low, high)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """``x`` where the condition holds, else ``y``."""
        return ops.where(condition, x, y)

    def mean(self, x: Any, axis: int | None = None) -> Any:
        """Mean."""
        return x.mean() if axis is None else x.mean(axis)

    def sum(self, x: Any, axis: int | None = None) -> Any:
        """Sum."""
        return x.sum() if axis is None else x.sum(axis)

    def max(self, x: Any, axis: int) -> Any:
        """Largest value along an axis; of equal ones each gets a part of the gradient."""
        return ops.amax(x, axis)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """Other axes, the same values in the same order."""
        return x.reshape(tuple(shape))

    def concat(self, tensors: Sequence[Any], axis: int) -> Any:
        """Tensors one behind the other."""
        return ops.cat(tuple(tensors), axis)

    def float32(self, x: Any) -> Any:
        """Return ``x`` as float32."""
        return x.astype(ms.float32)

    def one_hot(self, classes: Any, count: int) -> Any:
        """A last axis of 0 and 1."""
        return ops.one_hot(classes, count).astype(ms.float32)

    def stop_gradient(self, x: Any) -> Any:
        """Return the value alone."""
        return ops.stop_gradient(x)

    def cross_entropy(
        self, logits: Any, classes: Any, label_smoothing: float = 0.0, axis: int = -1
    ) -> Any:
        """Mean over all targets."""
        last = logits.moveaxis(axis, -1) if axis != -1 else logits
        flat = last.reshape((-1, last.shape[-1]))
        targets = classes.reshape((-1,))
        return ops.cross_entropy(flat, targets, label_smoothing=label_smoothing)

    def binary_cross_entropy(self, logits: Any, targets: Any) -> Any:
        """Mean over all targets."""
        return (ops.softplus(logits) - logits * targets).mean()
