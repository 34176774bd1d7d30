"""What a plan puts between operations: casts, casts with several outputs, clipped gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["cast", "clip", "fork"]


def cast(x: tf.Tensor, dtype: str) -> Any:
    """Return ``x`` as ``dtype``."""
    return tf.cast(x, dtype)


def fork(x: tf.Tensor, dtype: str, count: int) -> list[Any]:
    """Return ``count`` casts of ``x`` that are one; their gradients meet in the dtype of ``x``."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not followed
    def run(x: tf.Tensor) -> Any:
        made = tf.cast(x, dtype)

        def backward(*grads: Any) -> Any:
            wide = [tf.cast(grad, x.dtype) for grad in reversed(grads)]
            return wide[0] if len(wide) == 1 else tf.add_n(wide)

        return [tf.identity(made) for _ in range(count)], backward

    return list(run(x))


def clip(x: tf.Tensor, norm: float | None = None, value: float | None = None) -> Any:
    """Return ``x``; its gradient is clipped to a norm, or each of its elements to a size."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not followed
    def run(x: tf.Tensor) -> Any:
        def backward(grad: tf.Tensor) -> Any:
            if value is not None:
                return tf.clip_by_value(grad, -value, value)
            size = tf.norm(tf.cast(grad, tf.float32))
            # A norm that is not finite must stay so: the step is to notice it.
            factor = tf.where(tf.math.is_finite(size), tf.minimum(norm / size, 1.0), 1.0)
            return tf.cast(tf.cast(grad, tf.float32) * factor, grad.dtype)

        return tf.identity(x), backward

    return run(x)
