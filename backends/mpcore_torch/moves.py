"""Layout, threads and compiler of torch's steps; see ``mpcore.backend.moves.Moves``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mpcore_torch.layers import device_of
from mpcore_torch.modes import called

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from mpcore.step.result import StepResult
    from mpcore_torch.amp import TorchAmp

__all__ = ["built", "moves", "placed", "stepper"]

_LAYOUT, _COMPILE, _THREADS = "channels_last", "torch.compile", "threads="


def moves(model: nn.Module, batch: tuple[Any, ...], cores: int) -> dict[str, str]:
    """Return what may be tried: the layout where images go through convolutions."""
    found = {}
    if any(_is_image(tensor) for tensor in batch) and any(
        isinstance(layer, torch.nn.Conv2d | torch.nn.ConvTranspose2d) for layer in model.modules()
    ):
        found[_LAYOUT] = "model.to(memory_format=torch.channels_last), and each x alike"
    if device_of(model).type == "cpu":
        for count in sorted({1, cores // 2, cores} - {0, torch.get_num_threads()}):
            found[f"{_THREADS}{count}"] = f"torch.set_num_threads({count})"
    return found | {_COMPILE: "torch.compile(model) in the loss function, after prepare"}


def built(move: str, model: nn.Module) -> nn.Module:
    """Return the model, its weights in the layout."""
    return model.to(memory_format=torch.channels_last) if move == _LAYOUT else model


def placed(move: str, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the batch, images in the layout."""
    if move != _LAYOUT:
        return batch
    return tuple(t.to(memory_format=torch.channels_last) if _is_image(t) else t for t in batch)


def stepper(
    move: str,
    amp: TorchAmp,
    model: nn.Module,
    make_loss: Callable[[Any], Callable[..., Any]],
    options: Mapping[str, Any],
) -> Callable[..., StepResult]:
    """Return ``amp.step`` on the compiled model, or under so many threads."""
    model = called(model, "compiled" if move == _COMPILE else "eager")
    step = partial(amp.step, make_loss(model), **options)
    if not move.startswith(_THREADS):
        return step
    count = int(move.removeprefix(_THREADS))

    def threaded(*batch: Any) -> StepResult:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            return step(*batch)
        finally:
            torch.set_num_threads(before)

    return threaded


def _is_image(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.dim() == 4 and tensor.is_floating_point()
