"""The callback that follows Keras' ``fit``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from collections.abc import Callable

    import tensorflow as tf

    from mpcore_tensorflow.amp import KerasAmp

__all__ = ["StepCallback"]


class StepCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Hands each batch of ``fit`` on, or the last of each ``steps_per_execution``."""

    def __init__(
        self, amp: KerasAmp, take: Callable[[int, Callable[[], dict[str, Any]]], None]
    ) -> None:
        """Call ``take(steps, read)`` after batches; ``read()`` makes the record of the latest."""
        super().__init__()
        self._amp, self._take = amp, take
        self._seen, self._state = -1, amp.state

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Batches count from 0 in each epoch."""
        self._seen = -1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Hand the batches on that ended since the last call."""
        steps, self._seen = batch - self._seen, batch
        if self.model.steps_per_execution == 1 and len(self._amp.optimizers) == 1:
            return  # each step is followed by itself
        self._take(steps, lambda: self._read((logs or {}).get("loss")))

    def _read(self, loss: tf.Tensor | float | None) -> dict[str, Any]:
        before, state = self._state, self._amp.state
        self._state = state
        stepped = state.skipped_steps == before.skipped_steps
        value = None if loss is None else float(loss)
        return {
            "loss": value if value is None or math.isfinite(value) else str(value),
            "grad_norm": None,
            "scale": float(before.scale),
            "next_scale": float(state.scale),
            "stepped": stepped,
            "reason": None if stepped else "non-finite gradients",
            "culprit": None,
        }
