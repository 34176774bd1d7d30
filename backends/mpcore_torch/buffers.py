"""Copies of a module's buffers, so that a skipped step can put them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

__all__ = ["BufferGuard"]


class BufferGuard:
    """Copies of the buffers that a forward pass changes, in storage made once.

    Cost: one foreach copy of all buffers a step; nothing for a model without buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (module._buffers, name) for module in model.modules() for name in module._buffers
        ]
        self._shadows: list[torch.Tensor] = []

    def save(self) -> list[torch.Tensor | None]:
        """Copy the buffers and return them; one that is not there yet is None."""
        live = [place[name] for place, name in self._places]
        tensors = [buffer for buffer in live if buffer is not None]
        if not tensors:
            return live
        if [b.shape for b in tensors] != [s.shape for s in self._shadows]:
            self._shadows = [torch.empty_like(buffer) for buffer in tensors]
        with torch.no_grad():
            torch._foreach_copy_(self._shadows, tensors)
        return live

    def restore(self, live: list[torch.Tensor | None]) -> None:
        """Put the copies back into ``live``, and ``live`` back into the modules."""
        tensors = [buffer for buffer in live if buffer is not None]
        with torch.no_grad():
            for buffer, shadow in zip(tensors, self._shadows, strict=True):
                if not _expanded(buffer):
                    buffer.copy_(shadow)
        for (place, name), original in zip(self._places, live, strict=True):
            place[name] = original


def _expanded(buffer: torch.Tensor) -> bool:
    # Elements that share memory cannot be written in place, by a forward pass neither.
    sizes = zip(buffer.shape, buffer.stride(), strict=True)
    return any(stride == 0 and size > 1 for size, stride in sizes)
