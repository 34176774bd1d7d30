"""The old spelling ``torch.cuda.amp``."""

from __future__ import annotations

import warnings

import torch
from torch.cuda.amp import autocast, custom_bwd, custom_fwd

from mpcore_compat.torch_amp import scaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class GradScaler(scaler.GradScaler, torch.cuda.amp.GradScaler):  # type: ignore[misc]
    """``mpcore_compat.torch_amp.GradScaler`` for "cuda"; warns as the original does.

    Source: torch/cuda/amp/grad_scaler.py, torch 2.13.0, which is deprecated there.
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
        msg = "`torch.cuda.amp.GradScaler(args...)` is deprecated; use GradScaler('cuda', args...)."
        warnings.warn(msg, FutureWarning, stacklevel=2)
        scaler.GradScaler.__init__(
            self,
            "cuda",
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            enabled,
            safe=safe,
        )
