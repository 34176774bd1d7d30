"""How torch runs the steps of a comparison; see ``mpcore.backend.modes.Modes``."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from mpcore.step.result import StepResult
    from mpcore_torch.amp import TorchAmp

__all__ = ["MODES", "begin", "called", "one_thread", "stepper"]

MODES: tuple[str, ...] = ("eager", "compiled")


def begin(mode: str, device: str) -> None:
    """Let what is built from now on be on ``device``."""
    if not device:
        return
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as exc:
        reason = str(exc).splitlines()[0]
        msg = f"`device` must be one that torch has here, got {device!r}: {reason}"
        raise BackendError(msg) from exc
    torch.set_default_device(device)


def called(model: nn.Module, mode: str) -> Any:
    """Return the model, compiled by ``torch.compile`` where that is asked for."""
    return torch.compile(model) if mode == "compiled" else model


def stepper(amp: TorchAmp, loss_fn: Any, mode: str, **options: Any) -> Callable[..., StepResult]:
    """Return ``amp.step``: the model that it runs is compiled or not."""
    return partial(amp.step, loss_fn, **options)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let operations run on one thread, which adds up in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
