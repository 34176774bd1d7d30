"""Float32 values that go along in ``model.state_dict()``, where only a load finds them.

torch keeps a dict of facts beside the tensors of a state dict, by module, which ``torch.save``
writes and ``load_state_dict`` hands to hooks. The tensors stay those of the model, in 16 bits; a
model that is not prepared reads nothing else. Nothing is computed before the dict is saved, copied
or loaded.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from mpcore_torch.master_weights import Masters

__all__ = ["carried", "carry"]

_KEY = "mpcore_float32"


class _Values:
    """The float32 values behind the 16-bit parameters of one module, when somebody wants them."""

    def __init__(self, module: nn.Module, master_weights: Masters) -> None:
        self._module, self._master_weights = module, master_weights

    def read(self) -> OrderedDict[str, torch.Tensor]:
        """Return them by the module's own names."""
        states = self._master_weights.states
        found: OrderedDict[str, torch.Tensor] = OrderedDict()
        with torch.no_grad():
            for name, param in self._module._parameters.items():
                if param is not None and param in states and states[param].parts():
                    found[name] = states[param].to_save()
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Go into a file as a plain dict, such that ``torch.load(weights_only=True)`` reads it."""
        return OrderedDict, (list(self.read().items()),)

    def __deepcopy__(self, memo: dict[int, Any]) -> OrderedDict[str, torch.Tensor]:
        """Be a dict of copies."""
        return OrderedDict((name, value.clone()) for name, value in self.read().items())


class _Carry:
    """Hook of ``state_dict``: puts the values beside the tensors of a module."""

    def __init__(self, master_weights: Masters | None) -> None:
        self._master_weights = master_weights

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy or a pickle of the model has other parameters.
        return type(self), (None,)

    def __call__(self, module: nn.Module, _: Any, __: str, local: dict[str, Any]) -> None:
        """See ``register_state_dict_post_hook``."""
        if self._master_weights is not None and self._master_weights.states:
            local[_KEY] = _Values(module, self._master_weights)


def carry(model: nn.Module, master_weights: Masters) -> list[RemovableHandle]:
    """Let the state dicts of ``model`` carry the float32 values."""
    states = master_weights.states
    with_more = {low for low, state in states.items() if state.parts()}
    return [
        module.register_state_dict_post_hook(_Carry(master_weights))
        for module in model.modules()
        if any(param in with_more for param in module._parameters.values())
    ]


def carried(local: Mapping[str, Any], name: str, low: torch.Tensor) -> torch.Tensor | None:
    """Return the float32 values that came along with a 16-bit parameter of a state dict.

    Args:
        local: what torch keeps beside the module's tensors.
        name: of the parameter in its module.
        low: its value in the state dict.
    """
    held = local.get(_KEY)
    if isinstance(held, _Values):
        held = held.read()
    value = held.get(name) if isinstance(held, dict) else None
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
        return None
    return value if value.shape == low.shape else None
