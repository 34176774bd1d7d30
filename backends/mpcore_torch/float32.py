"""What float32 means to the products of a device: IEEE, or fewer bits of mantissa."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["set_float32"]

Switch = tuple["Callable[[], Any]", "Callable[[Any], None]", dict[str, Any]]
"""How it is read, how it is set, and its value for each word."""


def _attribute(home: Any, name: str, values: dict[str, Any]) -> Switch:
    return partial(getattr, home, name), partial(setattr, home, name), values


def _older(device: str) -> list[Switch]:
    """Return the switches that set the newer ones along, so that either can be read."""
    if device == "cuda":
        tf32 = {"strict": False, "fast": True}
        homes = (torch.backends.cuda.matmul, torch.backends.cudnn)
        return [_attribute(home, "allow_tf32", tf32) for home in homes]
    if device == "cpu":
        words = {"strict": "highest"}
        return [(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, words)]
    return []


def _newer(device: str) -> list[Switch]:
    back = torch.backends
    if device == "cuda":
        precision = {"strict": "ieee", "fast": "tf32"}
        homes = (back.cuda.matmul, back.cudnn.conv, back.cudnn.rnn)
        return [_attribute(home, "fp32_precision", precision) for home in homes]
    return [_attribute(back.mkldnn.matmul, "fp32_precision", {"strict": "ieee"})]


def set_float32(word: str, device: str) -> list[Callable[[], None]]:
    """Let float32 products on ``device`` be what a policy's ``float32`` says.

    torch keeps these switches for the whole process. On CUDA convolutions run in TF32 unless
    they are told not to. On the CPU float32 products are IEEE unless somebody calls
    ``torch.set_float32_matmul_precision``; ``"strict"`` takes that back, ``"fast"`` leaves it.
    On CUDA it was run on an H200, torch 2.11.0.

    Args:
        word: ``"strict"``, ``"fast"`` or ``"native"``.
        device: type of the device, such as ``"cuda"``.

    Returns:
        Calls that put back what was changed.
    """
    switches = _older(device)
    try:
        before = [read() for read, _, _ in switches]
    except RuntimeError:  # torch 2.13.0 refuses where somebody used the newer ones
        switches = _newer(device)
        before = [read() for read, _, _ in switches]
    undo: list[Callable[[], None]] = []
    for (_, write, values), value in zip(switches, before, strict=True):
        if word in values and value != values[word]:
            write(values[word])
            undo.append(partial(write, value))
    return undo
