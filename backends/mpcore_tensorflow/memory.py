"""The bytes that a prepared Keras model and its optimizers hold between steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import keras

    from mpcore_tensorflow.optimizer import TransactionalOptimizer

__all__ = ["array_bytes"]


def array_bytes(
    model: keras.Model, wrappers: list[TransactionalOptimizer], moved: list[Any]
) -> dict[str, int]:
    """Return bytes by kind, each array counted once; see ``mpcore.Amp.array_bytes``.

    Args:
        model: the model.
        wrappers: its optimizers.
        moved: the variables that the latest step had gradients of, which are in their dtype.
    """
    masters = [one for wrapper in wrappers for one in wrapper.master_states.values()]
    beside = [stored for one in masters for stored in one.beside]
    own = [v for wrapper in wrappers for v in wrapper.variables]
    seen: set[int] = set()
    return {
        "parameters": _size(model.variables, seen),
        "gradients": _size(moved, set()),
        "masters": _size(beside, seen),
        "optimizer": _size(own, seen),
    }


def _size(variables: Iterable[Any], seen: set[int]) -> int:
    total = 0
    for variable in variables:
        stored = variable._value
        if id(stored) not in seen:
            seen.add(id(stored))
            total += stored.dtype.size * variable.shape.num_elements()
    return total
