"""How MindSpore runs the steps of a comparison; see ``mpcore.backend.modes.Modes``."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import mindspore as ms

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.step.result import StepResult
    from mpcore_mindspore.amp import MindsporeAmp

__all__ = ["MODES", "begin", "called", "one_thread", "stepper"]

one_thread = contextlib.nullcontext  # threads are set before the framework starts

MODES: tuple[str, ...] = ("eager", "compiled")


def begin(mode: str, device: str) -> None:
    """Choose the device."""
    if not device:
        return
    kind, _, number = device.partition(":")
    names = {"cpu": "CPU", "gpu": "GPU", "ascend": "Ascend", "npu": "Ascend"}
    try:
        ms.set_device(names.get(kind.lower(), kind), *([int(number)] if number.isdigit() else []))
    except (RuntimeError, ValueError) as exc:
        reason = " ".join(str(exc).split())[:200]
        msg = f"`device` must be one that MindSpore has here, got {device!r}: {reason}"
        raise BackendError(msg) from exc


def called(model: Any, mode: str) -> Any:
    """Return the network: what is compiled is the whole step."""
    return model


def stepper(
    amp: MindsporeAmp, loss_fn: Any, mode: str, **options: Any
) -> Callable[..., StepResult]:
    """Return ``amp.step``, or a compiled train cell: one with gradients, one without."""
    if mode != "compiled":
        return partial(amp.step, loss_fn, **options)
    cells: dict[bool, Any] = {}

    def step(*batch: Any, keep_grads: bool = False) -> StepResult:
        if keep_grads not in cells:
            cells[keep_grads] = amp.train_cell(
                loss_fn, keep_grads=keep_grads, compiled=True, **options
            )
        return amp.result(cells[keep_grads](*batch))

    return step
