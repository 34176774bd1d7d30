"""The neutral ops of losses in TensorFlow; see ``mpcore.backend.loss_ops.LossOps``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TensorflowLossOps"]


class TensorflowLossOps:
    """Implements ``mpcore.backend.loss_ops.LossOps``."""

    abs = staticmethod(tf.abs)
    exp = staticmethod(tf.exp)
    log = staticmethod(tf.math.log)
    sqrt = staticmethod(tf.sqrt)
    square = staticmethod(tf.square)
    tanh = staticmethod(tf.tanh)
    sigmoid = staticmethod(tf.sigmoid)
    relu = staticmethod(tf.nn.relu)
    softplus = staticmethod(tf.math.softplus)
    maximum = staticmethod(tf.maximum)
    minimum = staticmethod(tf.minimum)
    where = staticmethod(tf.where)
    stop_gradient = staticmethod(tf.stop_gradient)

    def clip(self, x: Any, low: float, high: float) -> Any:
        """Values outside become the limits."""
        return tf.clip_by_value(x, low, high)

    def log_softmax(self, x: Any, axis: int = -1) -> Any:
        """Logarithm of the softmax."""
        return tf.nn.log_softmax(x, axis)

    def mean(self, x: Any, axis: int | None = None) -> Any:
        """Mean."""
        return tf.reduce_mean(x, axis)

    def sum(self, x: Any, axis: int | None = None) -> Any:
        """Sum."""
        return tf.reduce_sum(x, axis)

    def max(self, x: Any, axis: int) -> Any:
        """Largest value along an axis; of equal ones each gets a part of the gradient."""
        return tf.reduce_max(x, axis)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """Other axes, the same values in the same order."""
        return tf.reshape(x, shape)

    def concat(self, tensors: Sequence[Any], axis: int) -> Any:
        """Tensors one behind the other."""
        return tf.concat(tensors, axis)

    def float32(self, x: Any) -> Any:
        """Return ``x`` as float32."""
        return tf.cast(x, tf.float32)

    def one_hot(self, classes: Any, count: int) -> Any:
        """A last axis of 0 and 1."""
        return tf.one_hot(classes, count)

    def cross_entropy(
        self, logits: Any, classes: Any, label_smoothing: float = 0.0, axis: int = -1
    ) -> Any:
        """Mean over all targets."""
        if axis not in (-1, logits.shape.rank - 1):
            axes = [a for a in range(logits.shape.rank) if a != axis % logits.shape.rank]
            logits = tf.transpose(logits, [*axes, axis % logits.shape.rank])
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=classes, logits=logits)
        if not label_smoothing:
            return tf.reduce_mean(each)
        spread = -tf.reduce_mean(tf.nn.log_softmax(logits, -1))
        return (1 - label_smoothing) * tf.reduce_mean(each) + label_smoothing * spread

    def binary_cross_entropy(self, logits: Any, targets: Any) -> Any:
        """Mean over all targets."""
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(targets, logits))
