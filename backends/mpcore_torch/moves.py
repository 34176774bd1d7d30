"""Layout, threads and compiler of torch's steps; see ``mpcore.backend.moves``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mpcore.backend.moves import Move
from mpcore_torch.layers import device_of
from mpcore_torch.modes import called

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from mpcore.step.result import StepResult
    from mpcore_torch.amp import TorchAmp

    MakeLoss = Callable[[Any], Callable[..., Any]]

__all__ = ["moves"]


def moves(model: nn.Module, batch: tuple[Any, ...], cores: int) -> dict[str, Move]:
    """Return what may be tried: the layout where images go through convolutions."""
    found = {}
    if any(_is_image(tensor) for tensor in batch) and any(
        isinstance(layer, torch.nn.Conv2d | torch.nn.ConvTranspose2d) for layer in model.modules()
    ):
        how = "model.to(memory_format=torch.channels_last), and each x alike"
        found["channels_last"] = Move(how, _channels_last, _images_last)
    if device_of(model).type == "cpu":
        for count in sorted({1, cores // 2, cores} - {0, torch.get_num_threads()}):
            how = f"torch.set_num_threads({count})"
            found[f"threads={count}"] = Move(how, stepper=partial(_threaded, count), wall=True)
    how = "torch.compile(model) in the loss function, after prepare"
    return found | {"torch.compile": Move(how, stepper=_compiled)}


def _channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)


def _images_last(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(t.to(memory_format=torch.channels_last) if _is_image(t) else t for t in batch)


def _is_image(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.dim() == 4 and tensor.is_floating_point()


def _compiled(
    amp: TorchAmp, model: nn.Module, make_loss: MakeLoss, options: Mapping[str, Any]
) -> Callable[..., StepResult]:
    return partial(amp.step, make_loss(called(model, "compiled")), **options)


def _threaded(
    count: int, amp: TorchAmp, model: nn.Module, make_loss: MakeLoss, options: Mapping[str, Any]
) -> Callable[..., StepResult]:
    step = partial(amp.step, make_loss(model), **options)

    def threaded(*batch: Any) -> StepResult:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            return step(*batch)
        finally:
            torch.set_num_threads(before)

    return threaded
