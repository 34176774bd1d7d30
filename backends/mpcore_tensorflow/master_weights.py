"""Master weights: what each scheme stores of a 16-bit parameter between two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from mpcore.numerics import master_weights as arithmetic
from mpcore_tensorflow import rounding
from mpcore_tensorflow.transient import Transient

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mpcore.numerics.master_weights import MasterWeights

__all__ = [
    "CopiedMaster",
    "MasterState",
    "make_master_state",
    "master_state_of",
    "redirect_assignments",
    "restore_assignments",
]

_MARK = "_mpcore_master_state"  # attribute of a Keras variable with redirected assignments


class MasterState:
    """Master-weight state: a 16-bit parameter and what is stored beside it.

    Attributes:
        variable: the model's Keras variable.
        low: its storage, a 16-bit ``tf.Variable``.
        beside: what is stored beside it: Keras variables.
        dtype: of the master values that they hold.
    """

    dtype = "float32"

    def __init__(self, variable: keras.Variable) -> None:
        """Take ``variable``, which is stored in 16 bits already; ``close`` follows."""
        self.variable, self.low = variable, variable._value
        self.beside: list[Any] = []

    def open(self) -> Any:
        """Return the float32 master values, a tensor."""
        return rounding.widen(tf.convert_to_tensor(self.low))

    def to_save(self) -> npt.NDArray[np.float32]:
        """Return the master values such that ``put`` stores the same again; a new array."""
        return np.array(self.open().numpy(), np.float32)

    def close(self, value: tf.Tensor) -> None:
        """Store float32 values that a step ended with."""
        raise NotImplementedError

    def put(self, value: tf.Tensor) -> None:
        """Store float32 values that come from elsewhere, such as a checkpoint."""
        self.close(value)

    def take_place(self, step: keras.Variable | None, ordinal: int) -> None:
        """Take the place among the parameters of an optimizer.

        Args:
            step: Keras variable that counts the optimizer steps.
            ordinal: the place, from 0.
        """

    def stored_values(self) -> list[Any]:
        """Return what changes unless an update underflows."""
        return [self.low, *(one.value for one in self.beside)]

    def _store_beside(self, name: str, dtype: str, shape: tuple[int, ...] | None = None) -> Any:
        stored = keras.Variable(
            keras.initializers.Zeros(),
            shape=self.variable.shape if shape is None else shape,
            dtype=dtype,
            trainable=False,
            autocast=False,
            name=f"{self.variable.name}_{name}",
        )
        self.beside.append(stored)
        return stored


class CopiedMaster(MasterState):
    """A float32 copy, which the optimizer updates by itself."""

    def __init__(
        self, variable: keras.Variable, rounding: str, master: keras.Variable | None = None
    ) -> None:
        """Take ``variable``.

        Args:
            variable: the parameter.
            rounding: of the copy.
            master: the copy, a Keras variable; None for a new one.
        """
        super().__init__(variable)
        self._rounding = rounding
        if master is None:
            master = keras.Variable(
                tf.cast(variable.value, tf.float32), dtype="float32", name=variable.name
            )
            master.constraint = variable.constraint
        self.master = master
        self.beside.append(master)

    def open(self) -> Any:
        """Return the copy."""
        return tf.convert_to_tensor(self.master.value)

    def close(self, value: tf.Tensor) -> None:
        """Store the copy, and round it."""
        self.master.value.assign(value)
        self.lower()

    def lower(self) -> None:
        """Round the copy to the parameter."""
        value = tf.convert_to_tensor(self.master.value)
        if self._rounding == "nearest":
            self.low.assign(tf.cast(value, self.low.dtype))
        else:
            self.low.assign(rounding.round_low(value, self._rounding))

    def stored_values(self) -> list[Any]:
        """Return the copy."""
        return [self.master.value]


class _SplitMaster(MasterState):
    def __init__(self, variable: keras.Variable, rounding_: str) -> None:
        super().__init__(variable)
        self._rounding = rounding_
        self._store_beside("low_bits", "uint16" if rounding_ == "truncate" else "int16")
        if rounding_ == "nearest":
            self._store_beside(
                "ties", "uint8", (rounding.tie_bytes(variable.shape.num_elements()),)
            )

    def open(self) -> Any:
        low_bits, *ties = (tf.convert_to_tensor(one.value) for one in self.beside)
        return rounding.join(tf.convert_to_tensor(self.low), low_bits, self._rounding, *ties)

    def close(self, value: tf.Tensor) -> None:
        stored = (self.low, *(one.value for one in self.beside))
        for where, part in zip(stored, rounding.split(value, self._rounding), strict=True):
            where.assign(part)


class _KahanMaster(MasterState):
    def __init__(self, variable: keras.Variable) -> None:
        super().__init__(variable)
        self._remainder = self._store_beside("remainder", "bfloat16")

    def open(self) -> Any:
        remainder = tf.convert_to_tensor(self._remainder.value)
        return rounding.restore(tf.convert_to_tensor(self.low), remainder)

    def to_save(self) -> npt.NDArray[np.float32]:
        parts = (tf.convert_to_tensor(one) for one in (self.low, self._remainder.value))
        high, remainder = (tf.bitcast(part, tf.uint16).numpy() for part in parts)
        return arithmetic.restore_for_saving(high, remainder)

    def close(self, value: tf.Tensor) -> None:
        low, remainder = rounding.compensate(value)
        self.low.assign(low)
        self._remainder.value.assign(remainder)


class _StochasticMaster(MasterState):
    def __init__(self, variable: keras.Variable, seed: int) -> None:
        super().__init__(variable)
        self._seed, self._step, self._ordinal = seed, None, -1

    def take_place(self, step: keras.Variable | None, ordinal: int) -> None:
        self._step, self._ordinal = step, ordinal

    def close(self, value: tf.Tensor) -> None:
        if self._step is None:
            self.put(value)  # a frozen one, that no optimizer has numbered
            return
        step = tf.convert_to_tensor(self._step.value)
        self.low.assign(rounding.round_stochastic(value, self._seed, step, self._ordinal))

    def put(self, value: tf.Tensor) -> None:
        self.low.assign(rounding.round_low(value, "nearest"))


def make_master_state(scheme: MasterWeights, variable: keras.Variable) -> MasterState:
    """Return the state of a parameter that is stored in 16 bits; ``put`` is to follow.

    Args:
        scheme: the scheme, not ``none``.
        variable: the Keras variable.
    """
    if scheme.name == "copy":
        return CopiedMaster(variable, scheme.rounding)
    if scheme.name == "split":
        return _SplitMaster(variable, scheme.rounding)
    if scheme.name == "kahan":
        return _KahanMaster(variable)
    return _StochasticMaster(variable, scheme.seed)


def redirect_assignments(master: MasterState) -> None:
    """Let an assignment to the Keras variable reach its master values, before any rounding.

    So ``load_weights``, ``set_weights`` and ``variable.assign`` take float32 values whole. What
    goes past Keras (``variable.value.assign``, a ``tf.train.Checkpoint``) does not. The 16-bit
    values that the variable holds already move nothing: so a file with the master values in it may
    be read in any order.
    """
    variable = master.variable
    original = type(variable).assign

    def assign(value: tf.Tensor) -> Any:
        if isinstance(variable._value, Transient):
            return original(variable, value)  # the optimizer's own
        value = tf.cast(tf.convert_to_tensor(value), tf.float32)
        if value.shape != variable.shape:
            return original(variable, value)  # Keras says what is wrong
        if not _holds_already(master, value):
            master.put(value)
        return value

    def changed(by: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        def assign_by(delta: tf.Tensor) -> Any:
            now = variable._value.value() if _is_open(variable) else master.open()
            return assign(by(now, tf.cast(tf.convert_to_tensor(delta), tf.float32)))

        return assign_by

    setattr(variable, _MARK, master)
    variable.assign = assign
    variable.assign_add, variable.assign_sub = changed(tf.add), changed(tf.subtract)


def restore_assignments(variable: keras.Variable) -> None:
    """Let assignments be Keras' own again."""
    for name in (_MARK, "assign", "assign_add", "assign_sub"):
        vars(variable).pop(name, None)


def master_state_of(variable: keras.Variable) -> MasterState | None:
    """Return the state of a Keras variable whose assignments are redirected."""
    found: MasterState | None = vars(variable).get(_MARK)
    return found


def _holds_already(master: MasterState, value: tf.Tensor) -> bool:
    # Loading what is there already, rounded as it is, leaves the master values behind it.
    if not tf.executing_eagerly():
        return False
    low = tf.cast(tf.convert_to_tensor(master.low), tf.float32)
    return bool(tf.reduce_all(tf.equal(low, value)))


def _is_open(variable: keras.Variable) -> bool:
    return isinstance(variable._value, Transient)
