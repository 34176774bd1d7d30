"""Tell who writes a safetensors file that lacks float32 values of a prepared model.

``save_file``, ``save``, ``save_model`` and what calls them, ``save_pretrained`` among them, hand
their tensors to one function of safetensors. What stands for it while a model by="model" is
prepared looks whether one of them is a 16-bit parameter with float32 values behind it: a state dict
has those beside its tensors, where this format has no place for them.

Source: safetensors/torch.py, safetensors 0.8.0; ``_flatten`` before 0.6.
"""

from __future__ import annotations

import importlib.util
import weakref
from typing import TYPE_CHECKING, Any

import torch

from mpcore.amp.low_files import tell_of_low_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.amp.amp import Amp

__all__ = ["mark", "unmark"]

_NAMES = ("_flatten_as_ptr", "_flatten")
_HOSTS = ("safetensors", "transformers", "accelerate", "peft", "huggingface_hub")


def mark(amp: Amp) -> None:
    """Watch over the parameters of ``amp`` until ``unmark``, or until it is gone."""
    if importlib.util.find_spec("safetensors") is None:
        return
    _MARKED.add(amp)
    _SAVES.begin()
    weakref.finalize(amp, _left).atexit = False


def unmark(amp: Amp) -> None:
    """Take back what ``mark`` did."""
    _MARKED.discard(amp)
    _left()


_MARKED: weakref.WeakSet[Amp] = weakref.WeakSet()


def _left() -> None:
    if not _MARKED:
        _SAVES.end()


class _Saves:
    """What stands in the place of the function."""

    def __init__(self) -> None:
        self._before: dict[str, Callable[..., Any]] = {}

    def begin(self) -> None:
        """Put it there; a second call does nothing."""
        import safetensors.torch as home

        for name in _NAMES:
            if name not in self._before and hasattr(home, name):
                self._before[name] = getattr(home, name)
                setattr(home, name, _looking(self._before[name]))

    def end(self) -> None:
        """Put back what stood there; a second call does nothing."""
        import safetensors.torch as home

        for name, before in self._before.items():
            setattr(home, name, before)
        self._before.clear()


_SAVES = _Saves()


def _looking(before: Callable[..., Any]) -> Callable[..., Any]:
    def flattened(tensors: Any, *rest: Any) -> Any:
        if isinstance(tensors, dict):
            _look(tensors.values())
        return before(tensors, *rest)

    return flattened


def _look(tensors: Any) -> None:
    saved = {_place(one) for one in tensors if isinstance(one, torch.Tensor)}
    for amp in list(_MARKED):
        held = amp.masters  # type: ignore[attr-defined]  # a TorchAmp, which imports this file
        if any(_place(low) in saved for low in held):
            tell_of_low_file(amp, "a safetensors file", hosts=_HOSTS)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.dtype, tensor.data_ptr()
