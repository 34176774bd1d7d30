"""What a prepared optimizer knows and Keras must not track: what ``prepare`` decided, and since."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpcore.amp.guard import Guard
from mpcore.numerics.overflow import OverflowDetector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import keras
    import numpy as np

    from mpcore_tensorflow.buffers import BufferGuard
    from mpcore_tensorflow.following import Record
    from mpcore_tensorflow.master_weights import MasterState
    from mpcore_tensorflow.optimizer import TransactionalOptimizer
    from mpcore_tensorflow.optimizer_state import Moment
    from mpcore_tensorflow.stagnation import LostSums

__all__ = ["Preparation", "Untracked"]


@dataclass(frozen=True, eq=False)
class Preparation:
    """What ``mpcore.prepare`` decided for one optimizer, before it is built.

    Attributes:
        masters: master-weight states by ``id`` of the 16-bit variable, of all optimizers.
        frozen: those that no optimizer moves, by their places; they are saved with this one.
        shared: a built optimizer whose loss scale this one shares; None for its own.
        guard: puts the model's buffers back; None for a model that was not prepared.
        detector: how an overflow is noticed.
        after_step: called after each step that was taken.
        counts_lost: sum up the updates that rounding lost, for ``take_lost``.
    """

    masters: Mapping[int, MasterState] = field(default_factory=dict)
    frozen: Mapping[int, MasterState] = field(default_factory=dict)
    shared: TransactionalOptimizer | None = None
    guard: BufferGuard | None = None
    detector: OverflowDetector = field(default_factory=OverflowDetector)
    after_step: tuple[Callable[[], Any], ...] = ()
    counts_lost: bool = False


@dataclass(eq=False)
class Untracked:
    """What is out of sight of Keras, which would track dictionaries, tuples and optimizers.

    Attributes:
        preparation: what ``mpcore.prepare`` decided.
        gate: is open while the inner optimizer moves the model.
        masters: master-weight states of what this optimizer moves, by ``id`` of the variable.
        opens: those of them that have no float32 variable.
        moments: state of the inner optimizer that is stored in bfloat16.
        saved: what was loaded of frozen weights' master values, until ``prepare`` asks for it.
        steps: counts the optimizer steps, where stochastic rounding needs them.
        lost: sums of lost updates, where they are counted.
        record: where ``apply`` writes what it did, for who follows ``fit``.
        released: whether the model is the user's again.
    """

    preparation: Preparation = field(default_factory=Preparation)
    gate: Guard = field(default_factory=Guard)
    masters: dict[int, MasterState] = field(default_factory=dict)
    opens: list[MasterState] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    saved: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    steps: keras.Variable | None = None
    lost: LostSums | None = None
    record: Record | None = None
    released: bool = False
