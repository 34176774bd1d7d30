"""Put back what a forward pass outside of a step changes: buffers, generators, the open step."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from mpcore_torch.layers import device_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from mpcore.amp.amp import Amp

__all__ = ["left_alone"]


@contextlib.contextmanager
def left_alone(model: nn.Module, amp: Amp | None) -> Iterator[None]:
    """Put gradients, buffers, random generators and the step back."""
    params = list(model.parameters())
    held = [(param, param.grad) for param in params]
    buffers = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    devices = [device_of(model)] if device_of(model).type != "cpu" else []
    for param in params:
        param.grad = None
    try:
        with torch.random.fork_rng(devices, device_type=devices[0].type if devices else "cuda"):
            yield
    finally:
        if amp is not None:
            amp.abort_step()  # type: ignore[attr-defined]
        for param, grad in held:
            param.grad = grad
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                module._buffers[name] = buffer
                if buffer is not None:
                    buffer.copy_(value)
