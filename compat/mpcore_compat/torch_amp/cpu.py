"""The old spelling ``torch.cpu.amp``."""

from __future__ import annotations

import warnings

import torch
from torch.cpu.amp import autocast

from mpcore_compat.torch_amp import scaler

__all__ = ["GradScaler", "autocast"]


class GradScaler(scaler.GradScaler, torch.cpu.amp.GradScaler):  # type: ignore[misc]
    """``mpcore_compat.torch_amp.GradScaler`` for "cpu"; warns as the original does.

    Source: torch/cpu/amp/grad_scaler.py, torch 2.13.0, which is deprecated there.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        safe: bool = False,
    ) -> None:
        msg = "`torch.cpu.amp.GradScaler(args...)` is deprecated; use GradScaler('cpu', args...)."
        warnings.warn(msg, FutureWarning, stacklevel=2)
        scaler.GradScaler.__init__(
            self,
            "cpu",
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            enabled,
            safe=safe,
        )
