"""What ``torch.cuda.amp.GradScaler`` and ``torch.cpu.amp.GradScaler`` share."""

from __future__ import annotations

import warnings
from typing import ClassVar

from mpcore_compat.torch_amp import scaler

__all__ = ["OldSpelling"]


class OldSpelling(scaler.GradScaler):
    """``mpcore_compat.torch_amp.GradScaler`` for one device; warns as the original does.

    Source: torch/cuda/amp/grad_scaler.py and torch/cpu/amp/grad_scaler.py, torch 2.13.0, which are
    deprecated there.
    """

    device_type: ClassVar[str]

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
        device = self.device_type
        msg = (
            f"`torch.{device}.amp.GradScaler(args...)` is deprecated; "
            f"use GradScaler('{device}', args...)."
        )
        warnings.warn(msg, FutureWarning, stacklevel=2)
        scaler.GradScaler.__init__(
            self,
            device,
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            enabled,
            safe=safe,
        )
