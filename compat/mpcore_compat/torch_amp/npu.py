"""The spelling ``torch_npu.npu.amp``: read there, not run on an NPU."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from mpcore_compat.torch_amp import scaler

if TYPE_CHECKING:
    from mpcore.scaling.loss_scale import LossScale

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]

custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="npu")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="npu")


def autocast(
    enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
) -> Any:
    """Return ``torch.autocast("npu", ...)``; it needs torch_npu."""
    return torch.autocast("npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(scaler.GradScaler):
    """``torch_npu.npu.amp.GradScaler``: no ``device``, and ``dynamic``.

    After an overflow in an update no optimizer steps any more, whose gradients they were. It
    scales tensors of any device; factors act in float32; the state has the key ``dynamic``.
    Values are judged, never the status register, and nothing is printed.

    Args:
        init_scale: first scale.
        growth_factor: multiplier on growth, > 1.
        backoff_factor: multiplier on overflow, < 1.
        growth_interval: finite updates before one growth.
        dynamic: False for a constant scale: gradients are unscaled, not judged, never skipped.
        enabled: whether anything is scaled.
        safe: as for ``mpcore_compat.torch_amp.GradScaler``; overflows are then skipped under a
            constant scale too.

    Source: torch_npu/npu/amp/grad_scaler.py, Ascend/pytorch 9e73e708ab93.
    """

    _preset = "torch_npu"

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
        *,
        safe: bool = False,
    ) -> None:
        self._dynamic = dynamic  # first: the rule depends on it
        super().__init__(
            "npu", init_scale, growth_factor, backoff_factor, growth_interval, enabled, safe=safe
        )

    def _current_rule(self) -> LossScale:
        rule = super()._current_rule()
        return rule if self._dynamic else replace(rule, kind="static")

    def _any_overflow(self, optimizer: torch.optim.Optimizer) -> bool:
        if self._safe:
            return super()._any_overflow(optimizer)
        return self._dynamic and self._found_so_far()

    def state_dict(self) -> dict[str, Any]:
        """Return torch's entries and ``dynamic``."""
        state = super().state_dict()
        return {**state, "dynamic": self._dynamic} if state else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; one of torch's own, without ``dynamic``, keeps what is set here."""
        super().load_state_dict(state_dict)
        if self._enabled:
            self._dynamic = bool(state_dict.get("dynamic", self._dynamic))
