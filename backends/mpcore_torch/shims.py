"""All that compatibility shims import of this backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mpcore_torch.buffers import BufferGuard
from mpcore_torch.casting import apply_plan, cast_floats, replace_forward, store_low
from mpcore_torch.grad_scaler import bare_optimizer
from mpcore_torch.gradients import any_found, check, check_and_unscale_, merged, values_of
from mpcore_torch.master_binding import keep_masters, swap_in_low

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.hooks import RemovableHandle

__all__ = [
    "BufferGuard",
    "any_found",
    "apply_plan",
    "bare_optimizer",
    "cast_floats",
    "check",
    "check_and_unscale_",
    "keep_masters",
    "merged",
    "replace_forward",
    "store_low",
    "swap_in_low",
    "values_of",
    "watch_loading",
]


def watch_loading(
    model: nn.Module, masters: dict[nn.Parameter, nn.Parameter]
) -> list[RemovableHandle]:
    """Let masters take the values too when weights are loaded into ``model``."""
    return [
        module.register_load_state_dict_pre_hook(_LoadMasters(masters))
        for module in model.modules()
        if any(param in masters for param in module._parameters.values())
    ]


class _LoadMasters:
    """Hook of load_state_dict: the masters take the values too, before any rounding.

    A copy or a pickle of the model has other parameters, so the hook goes with it empty.
    """

    def __init__(self, masters: dict[nn.Parameter, nn.Parameter]) -> None:
        self._masters = masters

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ({},)

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Copy what ``module`` is about to load; see ``register_load_state_dict_pre_hook``."""
        with torch.no_grad():
            for name, param in module._parameters.items():
                master = None if param is None else self._masters.get(param)
                value = state.get(prefix + name)
                if master is None or not isinstance(value, torch.Tensor):
                    continue
                if value.shape == master.shape:  # else load_state_dict raises
                    master.copy_(value)
