"""The neutral ops of a loss that is written once for all frameworks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LossOps"]


class LossOps(Protocol):
    """What every framework has under some name; + - * / ** @, comparisons and slices work as ever.

    ``x`` is a tensor of the framework. ``axis`` None means all of them.
    """

    def abs(self, x: Any) -> Any:
        """Absolute value."""
        ...

    def exp(self, x: Any) -> Any:
        """Exponential."""
        ...

    def log(self, x: Any) -> Any:
        """Natural logarithm."""
        ...

    def sqrt(self, x: Any) -> Any:
        """Square root."""
        ...

    def square(self, x: Any) -> Any:
        """Square."""
        ...

    def tanh(self, x: Any) -> Any:
        """Hyperbolic tangent."""
        ...

    def sigmoid(self, x: Any) -> Any:
        """1 / (1 + exp(-x))."""
        ...

    def relu(self, x: Any) -> Any:
        """The larger of x and 0."""
        ...

    def softplus(self, x: Any) -> Any:
        """log(1 + exp(x))."""
        ...

    def log_softmax(self, x: Any, axis: int = -1) -> Any:
        """Logarithm of the softmax."""
        ...

    def maximum(self, x: Any, y: Any) -> Any:
        """The larger of two tensors."""
        ...

    def minimum(self, x: Any, y: Any) -> Any:
        """The smaller of two tensors."""
        ...

    def clip(self, x: Any, low: float, high: float) -> Any:
        """Values below ``low`` or above ``high`` become those."""
        ...

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """``x`` where the condition holds, else ``y``."""
        ...

    def mean(self, x: Any, axis: int | None = None) -> Any:
        """Mean."""
        ...

    def sum(self, x: Any, axis: int | None = None) -> Any:
        """Sum."""
        ...

    def max(self, x: Any, axis: int) -> Any:
        """Largest value along an axis."""
        ...

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """Other axes, the same values in the same order."""
        ...

    def concat(self, tensors: Sequence[Any], axis: int) -> Any:
        """Tensors one behind the other."""
        ...

    def float32(self, x: Any) -> Any:
        """Integers, booleans and 16-bit floats as float32."""
        ...

    def one_hot(self, classes: Any, count: int) -> Any:
        """A last axis of ``count`` float32 values: 1 at the class, else 0."""
        ...

    def stop_gradient(self, x: Any) -> Any:
        """The value, as a constant of the backward pass."""
        ...

    def cross_entropy(
        self, logits: Any, classes: Any, label_smoothing: float = 0.0, axis: int = -1
    ) -> Any:
        """Mean over all targets; ``axis`` is that of the classes in ``logits``."""
        ...

    def binary_cross_entropy(self, logits: Any, targets: Any) -> Any:
        """Mean over all targets, float32 of the shape of ``logits``, each in [0, 1]."""
        ...
