"""Arithmetic on one gradient: a tensor, IndexedSlices, or None where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None

__all__ = [
    "added",
    "all_finite",
    "chosen",
    "dense",
    "float32",
    "mapped",
    "unscaled",
    "values",
]


def values(grad: tf.Tensor | tf.IndexedSlices) -> Any:
    """Return the numbers of a gradient, as one tensor."""
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def mapped(function: Callable[[Any], Any], grad: Gradient) -> Any:
    """Return the gradient with ``function`` applied to its numbers; None stays None."""
    if grad is None:
        return None
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(function(grad.values), grad.indices, grad.dense_shape)
    return function(grad)


def dense(grad: Gradient) -> Any:
    """Return the gradient as a tensor; rows that occur twice are summed."""
    return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad


def float32(grad: Gradient) -> Any:
    """Return the gradient in float32."""
    return mapped(lambda g: tf.cast(g, tf.float32), grad)


def unscaled(grad: Gradient, divisor: tf.Tensor | float | None) -> Any:
    """Return the float32 gradient, divided unless ``divisor`` is None; repeated rows are summed."""
    if isinstance(grad, tf.IndexedSlices):
        # A row that occurs twice has two parts: neither norm nor square of a part is the whole's.
        rows, positions = tf.unique(grad.indices)
        summed = tf.math.unsorted_segment_sum(
            tf.cast(grad.values, tf.float32), positions, tf.size(rows)
        )
        grad = tf.IndexedSlices(summed, rows, grad.dense_shape)
    grad = float32(grad)
    return grad if divisor is None else mapped(lambda g: g / divisor, grad)


def added(grad: Gradient, other: Gradient) -> Any:
    """Return the sum in float32; that of two sparse gradients is sparse, repeating rows."""
    if grad is None or other is None:
        return float32(other if grad is None else grad)
    first, second = float32(grad), float32(other)
    if isinstance(first, tf.IndexedSlices) and isinstance(second, tf.IndexedSlices):
        numbers = tf.concat([first.values, second.values], axis=0)
        rows = tf.concat([first.indices, second.indices], axis=0)
        return tf.IndexedSlices(numbers, rows, first.dense_shape)
    return dense(first) + dense(second)


def chosen(condition: tf.Tensor, grad: Gradient) -> Any:
    """Return the float32 gradient where ``condition`` holds, else zeros (in the same rows)."""
    return mapped(lambda g: tf.where(condition, g, tf.zeros_like(g)), float32(grad))


def all_finite(grads: Iterable[Any]) -> Any:
    """Return whether no element of any gradient is inf or NaN; a 0-d bool."""
    checks = [tf.reduce_all(tf.math.is_finite(values(g))) for g in grads if g is not None]
    return tf.reduce_all(tf.stack(checks)) if checks else tf.constant(True)
