"""How torch runs the steps of a comparison; see ``mpcore.tools.experiment.configuration.Modes``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from mpcore.errors import BackendError
from mpcore_torch.layers import parameter_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from mpcore.step.result import StepResult
    from mpcore_torch.amp import TorchAmp

__all__ = [
    "MODES",
    "begin",
    "called",
    "one_thread",
    "place",
    "stepper",
    "true_gradients",
    "widened",
]

MODES = ("eager", "compiled")


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


def place(batch: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """Return the tensors of a batch on ``device``."""
    return tuple(tensor.to(device) for tensor in batch) if device else batch


def stepper(amp: TorchAmp, loss_fn: Any, mode: str) -> Callable[..., StepResult]:
    """Return ``amp.step``: the model that it runs is compiled or not."""
    return lambda *batch, keep_grads=False: amp.step(loss_fn, *batch, keep_grads=keep_grads)


def widened(model: nn.Module, batch: tuple[Any, ...]) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return model and batch in float64, in which rounding is not seen."""
    return model.double(), tuple(t.double() if t.is_floating_point() else t for t in batch)


def true_gradients(model: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradients of a loss by parameter path, as ``StepResult.grads`` has them."""
    names = {p: name for p, name in parameter_names(model).items() if p.requires_grad}
    found = torch.autograd.grad(loss, list(names), allow_unused=True)
    pairs = zip(names.values(), found, strict=True)
    return {name: grad for name, grad in pairs if grad is not None}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let operations run on one thread, which adds up in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
