"""16-bit parameters in the model and float32 masters in the optimizer, kept in step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mpcore.errors import BackendError
from mpcore_torch.carried import carried
from mpcore_torch.casting import cast_floats
from mpcore_torch.master_dict import holds_already

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from mpcore_torch.master_weights import Masters

__all__ = ["keep_masters", "load_into_masters", "swap_in_low"]


def swap_in_low(optimizer: torch.optim.Optimizer, low_of: dict[nn.Parameter, nn.Parameter]) -> None:
    """Let ``optimizer`` update other parameters, such as 16-bit ones; its state moves along."""
    for group in optimizer.param_groups:
        group["params"] = [low_of.get(param, param) for param in group["params"]]
    for param in [p for p in optimizer.state if p in low_of]:
        low, slots = low_of[param], optimizer.state.pop(param)
        # As torch's own load_state_dict casts: everything but the count of steps.
        optimizer.state[low] = {
            name: slot if name == "step" else cast_floats(slot, low.dtype)
            for name, slot in slots.items()
        }


def load_into_masters(model: nn.Module, master_weights: Masters) -> list[RemovableHandle]:
    """Let masters take the values too, unrounded, when weights are loaded into ``model``."""
    return [
        module.register_load_state_dict_pre_hook(_LoadMasters(master_weights))
        for module in model.modules()
        if module is model or any(p in master_weights.states for p in module._parameters.values())
    ]


def keep_masters(
    optimizer: torch.optim.Optimizer, masters: dict[nn.Parameter, nn.Parameter]
) -> None:
    """Let groups that are added to ``optimizer`` later hold masters."""
    original = optimizer.add_param_group

    def add_param_group(group: dict[str, Any]) -> None:
        params = group["params"]
        if not isinstance(params, torch.Tensor | set):  # a set is torch's to refuse
            group = {**group, "params": [_master_of(item, masters) for item in params]}
        elif isinstance(params, torch.Tensor):
            group = {**group, "params": [_master_of(params, masters)]}
        original(group)

    optimizer.add_param_group = add_param_group


def _master_of(item: Any, masters: dict[nn.Parameter, nn.Parameter]) -> Any:
    if isinstance(item, tuple):  # (name, parameter)
        return (item[0], masters.get(item[1], item[1]))
    return masters.get(item, item)


class _LoadMasters:
    """Hook of load_state_dict: what is stored beside 16-bit parameters takes the values too.

    The parameter is loaded with what the scheme made of them, not with torch's own rounding. A
    copy or a pickle of the model has other parameters, so the hook goes with it empty.
    """

    def __init__(self, master_weights: Masters | None) -> None:
        self._master_weights = master_weights

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (None,)

    def __call__(
        self, module: nn.Module, state: dict[str, Any], prefix: str, local: dict[str, Any], *_: Any
    ) -> None:
        """Store what ``module`` is about to load; see ``register_load_state_dict_pre_hook``.

        Raises:
            BackendError: ``load_state_dict(assign=True)``.
        """
        if self._master_weights is None:
            return
        states = self._master_weights.states
        if states and local.get("assign_to_params_buffers"):
            msg = (
                "`assign` must be False: it would put other parameters into the model than those "
                "whose float32 values the optimizer updates; load_state_dict copies without it"
            )
            raise BackendError(msg)
        for name, param in module._parameters.items():
            value = state.get(prefix + name)
            if param is None or param not in states or not isinstance(value, torch.Tensor):
                continue
            if value.shape != param.shape:
                continue  # load_state_dict raises
            known = holds_already(param, value)
            if known or value.dtype != param.dtype:
                self._master_weights.awaited.discard(param)
            more = carried(local, name, value)
            if more is not None:
                states[param].put(more)
            if not holds_already(param, value):  # what came along is not behind these values
                states[param].put(value.detach())
            state[prefix + name] = param.detach()
