"""The updates that rounding lost, counted inside a step: see ``mpcore.step.stagnation``."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from mpcore.step.stagnation import MOST, sample

__all__ = ["LostSums", "Sample"]


class Sample:
    """Elements of one parameter that are looked at, before and after a step."""

    def __init__(self, grad: tf.Tensor | tf.IndexedSlices, stored: list[Any]) -> None:
        """Look before the step.

        Args:
            grad: true gradient: a tensor or IndexedSlices, whose rows do not repeat.
            stored: variables that change unless the update is lost.
        """
        self._stored = stored
        self._places, updates = _sampled(grad)
        self._moves = updates != 0
        self._before = self._look()

    def _look(self) -> list[Any]:
        flat = [tf.reshape(tf.convert_to_tensor(one), (-1,)) for one in self._stored]
        return [tf.gather(values, self._places) for values in flat]

    def counts(self) -> Any:
        """Return (lost, updates looked at) after the step; float32, shape (2,)."""
        lost = self._moves
        for before, after in zip(self._before, self._look(), strict=True):
            lost &= before == after
        return tf.stack([tf.math.count_nonzero(x, dtype=tf.float32) for x in (lost, self._moves)])


def _sampled(grad: tf.Tensor | tf.IndexedSlices) -> tuple[Any, Any]:
    """Return flat places in the parameter, and the gradients there."""
    if not isinstance(grad, tf.IndexedSlices):
        places = sample(grad.shape.num_elements())
        return places, tf.gather(tf.reshape(grad, (-1,)), places)
    # How many rows there are is not known before: places beyond the last count as no update.
    flat = tf.reshape(grad.values, (-1,))
    size, width = tf.size(flat, tf.int64), int(np.prod(grad.values.shape[1:]))
    count = tf.minimum(size, MOST)
    order = tf.range(MOST, dtype=tf.int64)
    real = order < count
    taken = tf.where(real, order * size // tf.maximum(count, 1), 0)
    places = tf.gather(tf.cast(grad.indices, tf.int64), taken // width) * width + taken % width
    updates = tf.gather(flat, taken)
    return places, tf.where(real, updates, tf.zeros_like(updates))


class LostSums:
    """Sums of those counts over the steps of a loop that hands no record of a step to anybody."""

    def __init__(self, variables: list[Any]) -> None:
        """Begin at zero for ``variables``."""
        self._variables = list(variables)
        self._sums = tf.Variable(tf.zeros((len(variables), 2)), trainable=False)
        self._steps = tf.Variable(0, trainable=False)

    def add(self, stepped: tf.Tensor, variables: list[Any], counts: tf.Tensor) -> None:
        """Add the counts of one step, shape (variables, 2); in a graph too."""
        places = {id(variable): place for place, variable in enumerate(variables)}
        with_none = tf.concat([counts, tf.zeros((1, 2))], axis=0)
        order = [places.get(id(variable), len(variables)) for variable in self._variables]
        self._sums.assign_add(tf.gather(with_none, order))
        self._steps.assign_add(tf.cast(stepped, tf.int32))

    def take(self, steps: int) -> list[tuple[Any, Any]]:
        """Return (variable, its sums) and begin anew; nothing before so many optimizer steps."""
        if int(self._steps.numpy()) < steps:
            return []
        found = list(zip(self._variables, self._sums.numpy(), strict=True))
        self._sums.assign(tf.zeros_like(self._sums))
        self._steps.assign(0)
        return found
