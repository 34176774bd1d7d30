"""Moments of an optimizer in bfloat16 between its steps; it computes in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

__all__ = ["Moments"]


class Moments:
    """What an optimizer keeps for each element of a parameter, stored in 16 bits.

    Of an optimizer's state these are the float tensors of the parameter's shape: momentum
    buffers, running averages. Counts of steps and sums over rows stay as they are.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Store what ``optimizer`` has so far; what is loaded into it later is stored too."""
        self._optimizer = optimizer
        self._stored: dict[tuple[nn.Parameter, str], torch.Tensor] = {}
        self._hook = optimizer.register_load_state_dict_post_hook(lambda _: self.close_all())
        self.close_all()

    def open(self, params: Iterable[nn.Parameter]) -> None:
        """Let the moments of ``params`` be float32."""
        for param, state, name, slot in self._slots(params, torch.bfloat16):
            self._stored[param, name] = slot
            state[name] = slot.float()

    def close(self, params: Iterable[nn.Parameter]) -> None:
        """Round the moments of ``params`` to the nearest bfloat16, into the tensors they had."""
        stored, values, places = [], [], []
        for param, state, name, slot in self._slots(params, torch.float32):
            kept = self._stored.get((param, name))
            if kept is None or kept.shape != slot.shape or kept.device != slot.device:
                kept = torch.empty_like(slot, dtype=torch.bfloat16)
            stored.append(kept)
            values.append(slot)
            places.append((param, state, name))
        if stored:
            with torch.no_grad():
                torch._foreach_copy_(stored, values)
        # Rounded first: after a fault in between, what is still float32 is rounded again.
        for (param, state, name), kept in zip(places, stored, strict=True):
            state[name] = kept
            self._stored.pop((param, name), None)

    def discard(self) -> None:
        """Let those that are open be what they were before."""
        for (param, name), slot in self._stored.items():
            self._optimizer.state[param][name] = slot
        self._stored.clear()

    def close_all(self) -> None:
        """Round all there are."""
        self.close(param for group in self._optimizer.param_groups for param in group["params"])

    def release(self) -> None:
        """Let all moments be float32 for good."""
        self.open(param for group in self._optimizer.param_groups for param in group["params"])
        self._stored.clear()
        self._hook.remove()

    def _slots(
        self, params: Iterable[nn.Parameter], dtype: torch.dtype
    ) -> Iterator[tuple[nn.Parameter, dict[str, Any], str, torch.Tensor]]:
        for param in params:
            state = self._optimizer.state.get(param)
            for name, slot in list(state.items()) if state else ():
                if (
                    isinstance(slot, torch.Tensor)
                    and slot.dtype is dtype
                    and slot.dim()
                    and slot.shape == param.shape
                ):
                    yield param, state, name, slot
