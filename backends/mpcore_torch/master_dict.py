"""The float32 values behind 16-bit parameters, as ``amp.state_dict()`` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mpcore_torch.layers import parameter_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from mpcore_torch.master_weights import Masters

__all__ = ["bit_sum", "holds_already", "master_shapes", "read_masters", "write_masters"]


def master_shapes(
    model: nn.Module, master_weights: Masters, *, every: bool
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters with master values, or of all, by path."""
    with_more = _with_more(master_weights)
    return {
        name: tuple(param.shape)
        for param, name in parameter_names(model).items()
        if every or param in with_more
    }


def _with_more(master_weights: Masters) -> set[nn.Parameter]:
    # Stochastic rounding keeps nothing beside the parameter.
    return {low for low, state in master_weights.states.items() if state.parts()}


def read_masters(model: nn.Module, master_weights: Masters) -> dict[str, torch.Tensor]:
    """Return the values by path: the copies themselves, or new tensors on the host."""
    with_more = _with_more(master_weights)
    master_weights.look()
    master_weights.stay_beside()  # Lightning moves a model to the host before it saves its end
    with torch.no_grad():
        return {
            name: master_weights.states[param].to_save()
            for param, name in parameter_names(model).items()
            if param in with_more
        }


def write_masters(
    model: nn.Module, master_weights: Masters, values: Mapping[str, torch.Tensor]
) -> None:
    """Let parameters stand for ``values``, unrounded; the 16-bit parts follow.

    Those whose 16-bit part changes by it wait for the model's own checkpoint: see
    ``Masters.awaited``.
    """
    named = {name: param for param, name in parameter_names(model).items()}
    for name, value in values.items():
        param = named[name]
        before = param.detach().clone()
        master_weights.put(param, value)
        if param in master_weights.states and not holds_already(param, before):
            master_weights.awaited.add(param)


def holds_already(param: nn.Parameter, value: torch.Tensor) -> bool:
    """Return whether ``value`` has the dtype of the 16-bit ``param`` and its very bits."""
    if value.dtype != param.dtype or value.shape != param.shape:
        return False
    here = value.detach().to(param.device).contiguous().view(torch.int16)
    return bool(torch.equal(here, param.detach().contiguous().view(torch.int16)))


def bit_sum(values: torch.Tensor) -> int:
    """Return the sum of the bits of float32 values; see ``mpcore.checkpoint.amp_state``."""
    words = values.detach().contiguous().view(torch.int32)
    return int(words.sum(dtype=torch.int64))
