"""The old spelling ``torch.cuda.amp``."""

from __future__ import annotations

import torch
from torch.cuda.amp import autocast, custom_bwd, custom_fwd

from mpcore_compat.torch_amp.old_spelling import OldSpelling

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class GradScaler(OldSpelling, torch.cuda.amp.GradScaler):  # type: ignore[misc]
    """``mpcore_compat.torch_amp.GradScaler`` for "cuda"; warns as the original does."""

    device_type = "cuda"
