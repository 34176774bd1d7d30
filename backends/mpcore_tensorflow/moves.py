"""The compiler of tf.keras steps; see ``mpcore.backend.moves``.

Threads are set before TensorFlow starts, and its layout is channels last by itself.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from mpcore.backend.moves import Move

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpcore.step.result import StepResult
    from mpcore_tensorflow.amp import KerasAmp

__all__ = ["moves"]


def moves(model: Any, batch: tuple[Any, ...], cores: int) -> dict[str, Move]:
    """Return XLA."""
    how = "tf.function(loss_fn, jit_compile=True), or compile(..., jit_compile=True)"
    return {"jit_compile": Move(how, stepper=_compiled)}


def _compiled(
    amp: KerasAmp,
    model: Any,
    make_loss: Callable[[Any], Callable[..., Any]],
    options: Mapping[str, Any],
) -> Callable[..., StepResult]:
    """Return ``amp.step`` on a loss that XLA compiles, its gradients with it."""
    loss = tf.function(make_loss(model), jit_compile=True, autograph=False)
    return partial(amp.step, loss, **options)
