"""The look for a collapsed or stalled run in Keras' own training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from mpcore.step.stagnation import JUDGED_STEPS

if TYPE_CHECKING:
    from mpcore_tensorflow.amp import KerasAmp

__all__ = ["CollapseCallback"]


class CollapseCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Calls ``amp.check_collapse`` every ``patience`` batches, and at the end of each epoch.

    Where updates that rounding lost are counted, it calls ``amp.check_stall`` as often as there
    are enough steps to judge. Only then does it wait for the device.
    """

    def __init__(self, amp: KerasAmp) -> None:
        """Watch the steps of ``amp``."""
        super().__init__()
        self._amp = amp
        self._batches = self._unjudged = 0
        self._seen = -1

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forget what ``amp.step`` did before."""
        self._amp.last, self._batches = None, 0
        self._amp.restart_look()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the batches of an epoch from 0, as Keras does."""
        self._seen = -1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Look if there were ``patience`` batches; Keras may call it once for several."""
        self._batches += batch - self._seen
        self._unjudged += batch - self._seen
        self._seen = batch
        if self._unjudged >= JUDGED_STEPS:
            self._unjudged = 0
            self._amp.check_stall()
        if self._batches >= self._amp.policy.scaling.patience:
            self._look()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Look, and log the state of the loss scale."""
        self._look()
        if logs is not None:
            state, latest = self._amp.state, self._amp.fit_record
            logs["loss_scale"] = float(state.scale)
            logs["skipped_steps"] = int(state.skipped_steps)
            if latest is not None:
                logs["grad_norm"] = latest.grad_norm

    def _look(self) -> None:
        self._batches = 0
        self._amp.check_collapse()
