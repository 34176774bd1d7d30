"""How TensorFlow runs the steps of a comparison; see ``mpcore.backend.modes.Modes``."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.step.result import StepResult
    from mpcore_tensorflow.amp import KerasAmp

__all__ = ["MODES", "begin", "called", "one_thread", "stepper"]

one_thread = contextlib.nullcontext  # threads are set before the framework starts

MODES: tuple[str, ...] = ("compiled", "eager")


def begin(mode: str, device: str) -> None:
    """Run functions eagerly where that is asked for, and hide the devices that are not."""
    if mode == "eager":
        tf.config.run_functions_eagerly(True)
    if not device:
        return
    kind, _, number = device.upper().partition(":")
    found = tf.config.list_physical_devices(kind)
    chosen = found[int(number)] if number.isdigit() and int(number) < len(found) else None
    chosen = found[0] if found and not number else chosen
    if chosen is None:
        have = ", ".join(each.name.partition(":")[2] for each in tf.config.list_physical_devices())
        msg = f"`device` must be one that TensorFlow has here ({have}), got {device!r}"
        raise BackendError(msg)
    if kind != "CPU":  # operations without a kernel elsewhere need it
        tf.config.set_visible_devices([*tf.config.list_physical_devices("CPU"), chosen])
    else:
        tf.config.set_visible_devices([chosen])


def called(model: Any, mode: str) -> Any:
    """Return the model: what is compiled is the whole step."""
    return model


def stepper(amp: KerasAmp, loss_fn: Any, mode: str, **options: Any) -> Callable[..., StepResult]:
    """Return ``amp.step``, a ``tf.function`` that ``begin`` may have made run eagerly."""
    return partial(amp.step, loss_fn, **options)
