"""The state of a Keras optimizer: which of it are moments, and what it takes in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from mpcore.errors import OptimizerError
from mpcore.numerics import master_weights
from mpcore_tensorflow import rounding
from mpcore_tensorflow.storage import set_storage

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Moment", "check_state", "chunks", "store_moments"]


class Moment:
    """State of an optimizer that is stored in bfloat16; rounded to nearest.

    Attributes:
        variable: the optimizer's Keras variable.
    """

    def __init__(self, variable: keras.Variable) -> None:
        """Take ``variable``, which is stored in bfloat16 already."""
        self.variable, self._low = variable, variable._value

    def open(self) -> Any:
        """Return the values in float32."""
        return rounding.widen(tf.convert_to_tensor(self._low))

    def close(self, value: tf.Tensor) -> None:
        """Store float32 values."""
        self._low.assign(rounding.round_low(value, "nearest"))


def check_state(optimizer: keras.Optimizer, dtype: str) -> None:
    """Raise OptimizerError if moments of ``optimizer`` must not be stored as ``dtype``."""
    schedule_free = getattr(keras.optimizers, "ScheduleFreeAdamW", ())
    if dtype != "float32" and isinstance(optimizer, schedule_free):
        msg = (
            f"`optimizer_state` must be 'float32' for {type(optimizer).__name__}, got {dtype!r}: "
            "its momentum is a second set of weights, which would stop moving"
        )
        raise OptimizerError(msg)


def store_moments(optimizer: keras.Optimizer, dtype: str) -> list[Moment]:
    """Store the moments of a built optimizer as ``dtype``; return those that are to be opened.

    Averages of weights and sums of gradients stay float32, as do scalars.
    """
    full = [
        *(getattr(optimizer, "_model_variables_moving_average", None) or ()),
        *(getattr(optimizer, "_accumulated_gradients", None) or ()),
    ]
    left = {id(variable) for variable in full}
    found = [
        variable
        for variable in optimizer.variables
        if len(variable.shape) and _is_float(variable) and id(variable) not in left
    ]
    if dtype != "float32":
        for variable in found:
            if variable.value.dtype.name != dtype:
                set_storage(variable, rounding.round_low(tf.convert_to_tensor(variable), "nearest"))
        return [Moment(variable) for variable in found]
    return []


def _is_float(variable: keras.Variable) -> bool:
    return str(keras.backend.standardize_dtype(variable.dtype)) in ("float32", "bfloat16")


def chunks(optimizer: keras.Optimizer, variables: Sequence[Any]) -> list[list[int]]:
    """Return the places of ``variables`` in groups that ``optimizer`` may update one by one.

    A group holds ``mpcore.numerics.master_weights.CHUNK`` values, or one variable. There is one
    group where the optimizer looks at all variables together.
    """
    if not _takes_groups(optimizer):
        return [list(range(len(variables)))]
    groups: list[list[int]] = []
    room = 0
    for place, variable in enumerate(variables):
        size = variable.shape.num_elements()
        if not groups or size > room:
            groups.append([])
            room = master_weights.CHUNK
        groups[-1].append(place)
        room -= size
    return groups


def _takes_groups(optimizer: keras.Optimizer) -> bool:
    kind, base = type(optimizer), keras.optimizers.Optimizer
    rate = optimizer._learning_rate
    steady = isinstance(rate, keras.Variable | keras.optimizers.schedules.LearningRateSchedule)
    together = optimizer.global_clipnorm, optimizer.use_ema, optimizer.gradient_accumulation_steps
    return (
        kind.__module__.startswith("keras.")
        and kind.apply is base.apply
        and kind._backend_update_step is base._backend_update_step
        and steady
        and not any(together)
    )
