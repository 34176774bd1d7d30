"""A model that comes with 16-bit parameters: what is trained is widened, what is frozen stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore.errors import BackendError
from mpcore_torch.casting import cast_floats, is_low
from mpcore_torch.layers import parameter_names

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["moved_low", "refuse_low", "widen_statistics", "widen_trained"]

_NORMS = nn.modules.batchnorm._NormBase


def _trained(
    model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]
) -> dict[nn.Parameter, str]:
    """Return the 16-bit parameters that an optimizer moves, with their paths."""
    names = parameter_names(model)
    held = (p for entry in optimizers for group in entry.param_groups for p in group["params"])
    return {p: names[p] for p in held if p in names and p.requires_grad and is_low(p)}


def refuse_low(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Raise BackendError where 16-bit parameters are trained and cannot be widened."""
    for param, name in _trained(model, optimizers).items():
        if hasattr(param, "placements"):
            msg = (
                f"`model` must be sharded (FSDP2) in float32 where it is trained, {name} is "
                f"{_word(param.dtype)}: call model.float() before fully_shard"
            )
            raise BackendError(msg)
        if any(isinstance(m, nn.parallel.DistributedDataParallel) for m in model.modules()):
            msg = (
                f"`model` must be prepared before it is wrapped in DistributedDataParallel, which "
                f"watches {name} as {_word(param.dtype)}: it becomes float32"
            )
            raise BackendError(msg)


def widen_trained(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, str]:
    """Give trained 16-bit parameters float32 values, in place; an optimizer's state follows.

    Returns:
        The dtype that each had, by path.
    """
    optimizers = list(optimizers)
    found = {}
    for param, name in _trained(model, optimizers).items():
        found[name] = _word(param.dtype)
        param.grad = None
        param.data = param.data.float()
        for optimizer in optimizers:
            slots = optimizer.state.get(param)
            if slots:
                optimizer.state[param] = {key: _widened(slot) for key, slot in slots.items()}
    return found


def _widened(slot: Any) -> Any:
    low = isinstance(slot, torch.Tensor) and is_low(slot)
    return cast_floats(slot, torch.float32) if low else slot


def widen_statistics(model: nn.Module) -> None:
    """Give normalisations float32 statistics: their kernels take no others beside float32."""
    for module in model.modules():
        if isinstance(module, _NORMS):
            for name, buffer in module._buffers.items():
                if buffer is not None and is_low(buffer):
                    module._buffers[name] = buffer.float()


def moved_low(param: torch.Tensor, name: str) -> BackendError:
    """Return the error of a step that would move a 16-bit parameter without float32 values."""
    msg = (
        f"{name} was frozen in {_word(param.dtype)}, or in no optimizer, when the model was "
        "prepared: it has no float32 values to move; freeze it, or call `release()` and prepare "
        "the model again"
    )
    return BackendError(msg)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
