"""The compiler of tf.keras steps; see ``mpcore.backend.moves.Moves``.

Threads are set before TensorFlow starts, and its layout is channels last by itself.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpcore.step.result import StepResult
    from mpcore_tensorflow.amp import KerasAmp

__all__ = ["built", "moves", "placed", "stepper"]

_XLA = "jit_compile"


def moves(model: Any, batch: tuple[Any, ...], cores: int) -> dict[str, str]:
    """Return XLA."""
    return {_XLA: "tf.function(loss_fn, jit_compile=True), or compile(..., jit_compile=True)"}


def built(move: str, model: Any) -> Any:
    """Return the model as it is."""
    return model


def placed(move: str, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the batch as it is."""
    return batch


def stepper(
    move: str,
    amp: KerasAmp,
    model: Any,
    make_loss: Callable[[Any], Callable[..., Any]],
    options: Mapping[str, Any],
) -> Callable[..., StepResult]:
    """Return ``amp.step`` on a loss that XLA compiles, its gradients with it."""
    loss = make_loss(model)
    if move == _XLA:
        loss = tf.function(loss, jit_compile=True, autograph=False)
    return partial(amp.step, loss, **options)
